"""How concentrated the predictions are: C_t."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from tidefast.core import losses
from tidefast.core.network import Network
from tidefast.core.registry import Registry
from tidefast.core.source import SourceData
from tidefast.core.step import Step
from tidefast.resets.asr.part import Part

PROBE = "asr_probe"
"""The constant that holds the images of a `Probe`."""


@dataclass(frozen=True)
class Measure(Part):
    """Base of the measures: a number per step, larger the fewer classes are predicted."""

    @property
    def needs_source(self) -> str | None:
        """What it must be given beyond the model, in words; None when nothing."""
        return None

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        """Its constants, from source data."""
        return {}

    def of(self, logits: Tensor) -> Tensor:
        """The concentration of logits [batch, classes], a scalar."""
        raise NotImplementedError(f"{type(self).__name__} must define of()")

    def __call__(self, step: Step) -> Tensor:
        """The concentration at a step, asked for after its update; by default of what was answered before it."""
        return self.of(step.answer)


registry: Registry[Measure] = Registry("measure", Measure)


@registry.register("softmax-of-mean")
@dataclass(frozen=True)
class SoftmaxOfMean(Measure):
    """Negative entropy of the softmax of the mean logits (eq. 1)."""

    def of(self, logits: Tensor) -> Tensor:
        return losses.concentration(logits)


@registry.register("mean-of-softmax")
@dataclass(frozen=True)
class MeanOfSoftmax(Measure):
    """Negative entropy of the mean of the softmaxes, in which sure and unsure samples weigh the same."""

    def of(self, logits: Tensor) -> Tensor:
        return -losses.marginal_entropy(logits)


@registry.register("without-largest")
@dataclass(frozen=True)
class WithoutLargest(Measure):
    """Like softmax-of-mean, without the logits of the largest magnitude in the batch: `share` of them, at least one."""

    share: Annotated[float, Interval(ge=0.0, le=0.9)] = 0.1

    def of(self, logits: Tensor) -> Tensor:
        return losses.trimmed_concentration(logits, max(1, round(self.share * logits.numel())))


@registry.register("spread")
@dataclass(frozen=True)
class Spread(Measure):
    """Softmax-of-mean of logits whose lengths differ more between samples: a test of how robust that measure is.

    Each sample's logits are scaled so that the variance of their lengths over the batch is `factor` times as large and
    its mean stays. Lengths become c m^p with one exponent p for the batch, so they stay positive and keep their order.
    """

    factor: Annotated[float, Ge(1.0)] = 15.0

    def of(self, logits: Tensor) -> Tensor:
        return losses.concentration(spread(logits, self.factor))


@registry.register("probe")
@dataclass(frozen=True)
class Probe(Measure):
    """Softmax-of-mean of the adapted network's answers to fixed source images, as many of each class as of any other.

    Labels that come unevenly cannot raise it, so that it only rises when the model itself is biased. The answers are
    those of after the step's update.
    """

    images: Annotated[int, Ge(2)] = 64
    """At most so many: with fewer images than classes, one of each of so many classes."""

    @property
    def needs_source(self) -> str:
        return "labelled source images"

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        by_class: dict[int, list[Tensor]] = {}
        for images, labels in source.labelled():
            for image, label in zip(images, labels.tolist(), strict=True):
                held = by_class.setdefault(label, [])
                if len(held) < max(1, self.images // len(by_class)):  # a data set may be too large to hold
                    held.append(image.clone())
        classes = sorted(by_class)
        if len(classes) > self.images:  # neighbours in the list are often alike: take them from all over it
            classes = [classes[at * len(classes) // self.images] for at in range(self.images)]
        each = min(max(1, self.images // len(classes)), *(len(by_class[label]) for label in classes))
        return {PROBE: torch.stack([by_class[label][turn] for turn in range(each) for label in classes])}

    @torch.no_grad()
    def __call__(self, step: Step) -> Tensor:
        return losses.concentration(step.network(step.constants[PROBE]))


def spread(logits: Tensor, factor: float) -> Tensor:
    """Logits whose lengths have `factor` times the variance over the batch, and the same mean.

    Where all lengths are equal, or one is 0, logits stay as they are; where a batch is too small for so much, as much
    as it takes.

    >>> logits = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
    >>> before, after = logits.norm(dim=1), spread(logits, 15.0).norm(dim=1)
    >>> round(float(after.var() / before.var()), 2), round(float(after.mean() / before.mean()), 4)
    (15.0, 1.0)
    """
    length = logits.norm(dim=1).cpu().double()
    wanted = factor * length.var(correction=0)
    if not wanted > 0 or not bool((length > 0).all()):
        return logits
    low, high = 1.0, 256.0
    log = (length / length.max()).log()
    for _ in range(60):  # the variance grows with the exponent
        exponent = (low + high) / 2
        stretched = (exponent * log).exp()
        stretched = stretched * (length.mean() / stretched.mean())
        low, high = (exponent, high) if stretched.var(correction=0) < wanted else (low, exponent)
    scale: Tensor = (stretched / length).to(logits)
    return logits * scale[:, None]
