"""Canaries: source images whose answers are known, and a look at them as the stream's images look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.core.step import Step
from tidefast.resets.guard.look import dress

CANARIES, ANSWERS = "guard_canaries", "guard_answers"
"""The constants: images [n, ...], and what the source model says they and their mirror images are [2, n]."""
_BATCH = 64


def prepared(network: Network, source: SourceData, count: int) -> dict[str, Tensor]:
    """The constants, from at most so many of the source images."""
    canaries = _drawn(source, count)
    answers = [
        torch.cat([network.source_logits(p, running_statistics=True).argmax(1) for p in torch.split(side, _BATCH)])
        for side in _sides(canaries)
    ]
    return {CANARIES: canaries, ANSWERS: torch.stack(answers)}


class CanaryAnswers(NamedTuple):
    """What a network answers to canaries."""

    right: Tensor
    """1.0 or 0.0 [canaries]."""
    confidence: Tensor
    """The probability of each answer [canaries]."""


@dataclass(frozen=True)
class DressedCanaries:
    """Some canaries as a batch of the stream looks, in batches as large as that one."""

    batches: tuple[Tensor, ...]
    known: Tensor
    """What they are [canaries]."""

    @classmethod
    def at(cls, places: Tensor, step: Step, generator: torch.Generator) -> DressedCanaries:
        """The canaries at these places, all mirrored or none of them."""
        side = int(torch.randint(2, (), generator=generator))
        images = _sides(step.constants[CANARIES][places])[side]
        size = batch_size(step)
        return cls(torch.split(dress(images, step.images, generator), size), step.constants[ANSWERS][side, places])

    def answers(self, network: Callable[[Tensor], Tensor]) -> CanaryAnswers:
        """What a network, images to logits, answers to them."""
        logits = torch.cat([network(images) for images in self.batches])
        return CanaryAnswers((logits.argmax(1) == self.known).float(), confidence(logits))

    def right(self, network: Callable[[Tensor], Tensor]) -> Tensor:
        """Which of them a network answers right: 1.0 or 0.0 [canaries]."""
        return self.answers(network).right


def batch_size(step: Step) -> int:
    """How many canaries are asked together."""
    return min(max(2, len(step.images)), len(step.constants[CANARIES]))


def how_many(step: Step, asked: int) -> int:
    """About `asked`, in whole batches."""
    size = batch_size(step)
    return size * max(1, min(asked, len(step.constants[CANARIES])) // size)


def lead(own: Tensor, other: Tensor) -> Tensor:
    """By how many standard errors the first has more right answers than the second, to the same canaries."""
    difference = own - other
    return difference.sum() / (1.0 + difference.square().sum()).sqrt()


def lead_on_stream(own: Tensor, other: Tensor, ahead: Tensor) -> tuple[Tensor, Tensor]:
    """How far the first of two networks is ahead on a stream that canaries may not look like: as a share of the images,
    and in standard errors.

    `own`, `other`: of canaries, right answers less the confidence in them; `ahead`: the first's confidence in its
    answers to the stream's images, less the other's. A network that loses right answers between canaries and stream
    loses confidence with them, so what is added is how it changes from the ones to the others.
    """
    difference = own - other
    variance = (1.0 + difference.square().sum()) / len(difference) ** 2
    variance = variance + (ahead - ahead.mean()).square().sum() / len(ahead) ** 2
    share = difference.mean() + ahead.mean()
    return share, share / variance.sqrt()


def confidence(logits: Tensor) -> Tensor:
    """The largest probability of each image [images]."""
    return logits.float().softmax(1).amax(1)


def _drawn(source: SourceData, count: int) -> Tensor:
    """So many images in no order; each of the first few thousand has the same chance, however they are sorted."""
    generator = torch.Generator().manual_seed(0)
    kept, ranks, seen = torch.empty(0), torch.empty(0), 0
    for images in source:
        drawn = torch.rand(len(images), generator=generator)
        kept = torch.cat([kept, images]) if seen else images
        ranks, best = torch.cat([ranks, drawn]).sort(stable=True)
        ranks, kept = ranks[:count], kept[best[:count]]
        seen += len(images)
        if seen >= 16 * count:
            break
    return kept.clone()


def _sides(images: Tensor) -> tuple[Tensor, Tensor]:
    """Images and their mirror images; inputs that are no images twice as they are."""
    return images, images.flip(-1) if images.dim() == 4 else images
