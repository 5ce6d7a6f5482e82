"""Who takes part: each contestant is a method with a reset policy, under the published settings for CIFAR.

Three have a learning rate that is `TOO_HIGH`, because somebody has to fall: Tent, the plainest method that learns, at
the lowest of 1, 10 and 30 times its rate at which it ends at chance on a stream that the demonstration does not show
(`drift` with seed 3, by benchmarks/canaries.py). That alone decided, and nothing about who is protected how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidefast.core.specification import Specification
from tidefast.core.validation import require_choice

TOO_HIGH = 30.0
"""Times the published learning rate."""


@dataclass(frozen=True)
class Contestant:
    """One method with one reset policy; `key` is for the command line, `label` for people."""

    key: str
    label: str
    method: Specification
    reset: Specification
    cost: float
    """Roughly, its passes through the network per batch: the dearest start first, so that no core idles at the end."""
    rate: float = 1.0
    """Its learning rate, over the published one."""


def pick_contestants(steps: int, full: bool = False, keys: Sequence[str] | None = None) -> list[Contestant]:
    """The contestants of a stream of `steps` batches, in the order of the report; `keys` picks some of all.

    >>> [contestant.key for contestant in pick_contestants(800)]
    ['source', 'batchnorm', 'tent', 'tent-fast', 'tent-fast+asr', 'tent-fast+guard', 'eta', 'eta+asr']
    """
    eta, roid, tent = Specification("eta", {"similarity_margin": 0.4}), Specification("roid"), Specification("tent")
    never, asr, guard = Specification("never"), Specification("asr"), Specification("guard")
    fast = f"Tent, {TOO_HIGH:.0f} x rate"
    # RDumb's published period is 1000 of tens of thousands of batches; four episodes show what it does here.
    rdumb = Specification("periodic", {"every": max(1, steps // 4)})
    matched = Specification("periodic", {"every": 39})  # as often as ASR resets ETA here
    main = [
        Contestant("source", "source", Specification("source"), never, 1.0),
        Contestant("batchnorm", "batch statistics", Specification("batchnorm"), never, 1.0),
        Contestant("tent", "Tent", tent, never, 3.0),
        Contestant("tent-fast", fast, tent, never, 3.0, TOO_HIGH),
        Contestant("tent-fast+asr", f"{fast} + ASR", tent, asr, 4.0, TOO_HIGH),
        Contestant("tent-fast+guard", f"{fast} + guard", tent, guard, 4.0, TOO_HIGH),
        Contestant("eta", "ETA", eta, never, 3.0),
        Contestant("eta+asr", "ETA + ASR", eta, asr, 4.0),
    ]
    more = [
        Contestant("eta+rdumb", "ETA + RDumb", eta, rdumb, 3.0),
        Contestant("eta+rdumb-matched", "ETA + RDumb (matched)", eta, matched, 3.0),
        Contestant("roid+asr", "ROID + ASR", roid, asr, 6.0),
        Contestant("tent+asr", "Tent + ASR", tent, asr, 4.0),
        Contestant("roid", "ROID", roid, never, 5.0),
        Contestant("roid+guard", "ROID + guard", roid, guard, 6.0),
        Contestant("roid+rdumb", "ROID + RDumb", roid, rdumb, 5.0),
        Contestant("cmf", "CMF", Specification("cmf"), never, 5.0),
        Contestant("sar", "SAR", Specification("sar"), never, 5.0),
    ]
    if keys is None:
        return main + more if full else main
    known = {contestant.key: contestant for contestant in main + more}
    for key in keys:
        require_choice("contestants", key, known)
    return [contestant for key, contestant in known.items() if key in keys]
