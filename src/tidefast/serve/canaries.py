"""Canaries: images whose answers are known, asked now and then, so that a slow collapse is seen before it is total."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from tidefast.core.measurement import Measurement
from tidefast.resets.guard.look import dress

AGREEMENT, REFERENCE, EVIDENCE = "canary_agreement", "canary_reference", "canary_evidence"
MEASURES: Mapping[str, Measurement] = {
    AGREEMENT: Measurement("Known images, looking like the stream's, that get the source model's answer.", "share"),
    REFERENCE: Measurement("The same before adapting.", "share", beside=AGREEMENT),
    EVIDENCE: Measurement("Evidence of harm: standard errors by which known images are answered worse than before."),
}
FEWEST = 16
"""Canaries with which an alarm is possible at all before everything is lost."""

DOUBT = 1.5
"""Evidence that is worth asking again sooner."""

Answering: TypeAlias = Callable[[Tensor], Tensor]
"""Images [n, ...] to logits [n, classes]."""


class Look(NamedTuple):
    """What came of asking once."""

    asked: int
    kept: int
    """Canaries that got the source model's answer,"""
    reference: int
    """and those that got it before adapting,"""
    lost: int
    """and those that got it before adapting, and do not any more,"""
    gained: int
    """and the other way round."""


@dataclass
class _Questioned:
    """When a stream is asked, and what it said the last times."""

    gap: int
    waited: int = 0
    """Images seen since it was last asked."""
    times: int = 0
    """How often it was asked."""
    looks: tuple[Look, ...] = ()


class Canaries:
    """Known images, and how each stream answers them.

    images: [n, ...], of which `asked` at a time are asked, in turn.
    answers: what the source model says they are [n].
    every: a stream is asked after so many images; sooner while it is young, and in doubt after a quarter of them.

    Asking changes nothing in a stream. Canaries are dressed in the look of the stream's latest batch, because a network
    that follows its stream may leave clean images behind and be all the better for it; and they are compared with
    what the network would have answered to the same images before it adapted. See docs/guard.md.

    >>> canaries = Canaries(torch.rand(16, 3, 8, 8), torch.zeros(16, dtype=torch.long))
    >>> canaries.is_due("camera", 16), canaries.is_due("camera", 16)
    (True, False)
    >>> first, second = (torch.eye(2)[k].expand(16, 2) for k in (0, 1))
    >>> canaries.ask("camera", lambda images: second, lambda images: first, like=torch.rand(4, 3, 8, 8))
    {'canary_agreement': 0.0, 'canary_reference': 1.0, 'canary_evidence': 4.0}
    """

    def __init__(self, images: Tensor, answers: Tensor, *, asked: int = 64, every: int = 2048) -> None:
        if len(images) < FEWEST:
            raise ValueError(f"{len(images)} canaries are too few to tell anything: give {FEWEST} or more, best 128")
        self.images, self.answers = images, answers
        self._asked, self._every = min(asked, len(images)), every
        self._memory = min(4, len(images) // self._asked)  # looks that have no canary in common
        self._streams: dict[str, _Questioned] = {}

    def __len__(self) -> int:
        return len(self.images)

    def is_due(self, name: str, images: int, *, stepped: bool = True) -> bool:
        """Whether to ask the stream now that it has seen so many more images; not before it has `stepped`."""
        stream = self._streams.setdefault(name, _Questioned(gap=1))
        stream.waited += images
        if not stepped or stream.waited < stream.gap:
            return False
        stream.gap = min(self._every, 2 * stream.waited)
        stream.waited = 0
        return True

    def forget(self, name: str) -> None:
        """The stream is gone, or not what it was."""
        self._streams.pop(name, None)

    @torch.no_grad()
    def ask(self, name: str, now: Answering, before: Answering, like: Tensor) -> dict[str, float]:
        """What the stream makes of the next canaries as the images `like` look, and of those before.

        now, before: the answers of the network as it is, and as it was before it adapted.
        """
        stream = self._streams.setdefault(name, _Questioned(gap=1))
        places = (torch.arange(self._asked) + stream.times * self._asked) % len(self)
        dressed = dress(self.images[places], like, torch.Generator().manual_seed(stream.times))
        known = self.answers[places]
        right, was = now(dressed).argmax(1) == known, before(dressed).argmax(1) == known
        counts = (right.sum(), was.sum(), (was & ~right).sum(), (right & ~was).sum())
        stream.times += 1
        stream.looks = (*stream.looks, Look(self._asked, *(int(count) for count in counts)))[-self._memory :]
        measured = summary(stream.looks)
        if measured[EVIDENCE] > DOUBT:
            stream.gap = min(stream.gap, self._every // 4)
        return measured


def summary(looks: tuple[Look, ...]) -> dict[str, float]:
    """The measurements that some looks amount to: shares of the last one, and the evidence of all of them.

    That is of a sign test: of the canaries that changed sides, chance would take as many one way as the other.

    >>> summary((Look(asked=64, kept=39, reference=60, lost=25, gained=4),))
    {'canary_agreement': 0.609..., 'canary_reference': 0.9375, 'canary_evidence': 3.89...}
    """
    lost, gained, last = sum(look.lost for look in looks), sum(look.gained for look in looks), looks[-1]
    evidence = (lost - gained) / math.sqrt(gained + lost) if gained + lost else 0.0
    return {AGREEMENT: last.kept / last.asked, REFERENCE: last.reference / last.asked, EVIDENCE: evidence}
