"""Who takes part: each contestant is a method with a reset policy, under the published settings for CIFAR."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from holdfast import methods, resets
from holdfast.adapter import Adapter
from holdfast.methods.base import Method
from holdfast.resets.base import Reset
from holdfast.validation import require_choice

NUM_CLASSES = 10
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Contestant:
    """One method with one reset policy; `key` names its folder, `label` is for people."""

    key: str
    label: str
    method: Method
    reset: Reset
    cost: float
    """Roughly, its passes through the network per batch: the dearest start first, so that no core idles at the end."""

    def adapter(self, model: torch.nn.Module, seed: int) -> Adapter:
        """The contestant at the start of the stream."""
        optimizer = functools.partial(torch.optim.Adam, lr=LEARNING_RATE)
        return Adapter(model, self.method, reset=self.reset, optimizer=optimizer, num_classes=NUM_CLASSES, seed=seed)

    def description(self) -> dict[str, str]:
        """What must be equal for saved results to be this contestant's."""
        return {"method": repr(self.method), "reset": repr(self.reset), "optimizer": f"Adam(lr={LEARNING_RATE})"}


def lineup(steps: int, full: bool = False, keys: Sequence[str] | None = None) -> list[Contestant]:
    """The contestants of a stream of `steps` batches, in the order of the report; `keys` picks some of all.

    >>> [contestant.key for contestant in lineup(800)]
    ['source', 'batchnorm', 'tent', 'eta', 'eta+rdumb', 'eta+asr', 'roid+asr']
    """
    eta, roid, tent = methods.ETA.for_classes(NUM_CLASSES), methods.ROID(), methods.Tent()
    # RDumb's published period is 1000 of tens of thousands of batches; four episodes show what it does here.
    never, rdumb, asr = resets.Never(), resets.Periodic(every=max(1, steps // 4)), resets.ASR()
    main = [
        Contestant("source", "source", methods.Source(), never, 1.0),
        Contestant("batchnorm", "batch statistics", methods.BatchNorm(), never, 1.0),
        Contestant("tent", "Tent", tent, never, 3.0),
        Contestant("eta", "ETA", eta, never, 3.0),
        Contestant("eta+rdumb", "ETA + RDumb", eta, rdumb, 3.0),
        Contestant("eta+asr", "ETA + ASR", eta, asr, 4.0),
        Contestant("roid+asr", "ROID + ASR", roid, asr, 6.0),
    ]
    more = [
        Contestant("tent+asr", "Tent + ASR", tent, asr, 4.0),
        Contestant("roid", "ROID", roid, never, 5.0),
        Contestant("roid+rdumb", "ROID + RDumb", roid, rdumb, 5.0),
        Contestant("cmf", "CMF", methods.CMF(), never, 5.0),
        Contestant("sar", "SAR", methods.SAR(), never, 5.0),
    ]
    if keys is None:
        return main + more if full else main
    known = {contestant.key: contestant for contestant in main + more}
    for key in keys:
        require_choice("contestants", key, known)
    return [contestant for key, contestant in known.items() if key in keys]
