"""PeTTA: RoTTA's teacher and memory, held back the more, the further the features have drifted from the source's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional

from tidefast.core import losses
from tidefast.core.arena import Arena
from tidefast.core.constraints import NonNegative, Share
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.core.step import Forward, Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.shared.memory import MemoryTeacher, refusable
from tidefast.probes.features import Features


@registry.register("petta")
@dataclass(frozen=True)
class PeTTA(MemoryTeacher):
    """L = L_cls + g pull R(theta) + anchor_weight x mean CE(a, s'), over the bank, in every batch.

    s, s': the student on remembered images and on augmented copies; t, a: teacher and source model on the images, each
    with statistics of its own. L_cls = mean CE(t, s'), or with `symmetric` the mean of SCE(s, t) / 2 + SCE(s', t) / 2.
    R = -cos(theta, theta0), averaged over the tensors.

    g = 1 - exp(-D) measures the drift: D averages (m - mu0)^2 / (v0 + 1e-6) over feature dimensions and the classes
    predicted in the batch, m a moving average of the teacher's features of a class, mu0 and v0 their mean and
    variance in the source. The teacher follows at the rate (1 - g)(1 - teacher_momentum).
    """

    about: ClassVar[About] = About(
        title="PeTTA",
        family="With a teacher",
        adapts="scale and shift, statistics",
        equation=r"""
        L = \frac1M \sum_i \left[ H\big(t(x_i), s(\tilde x_i)\big) + w\,H\big(a(x_i), s(\tilde x_i)\big) \right]
        - \gamma\,\lambda_0 \cos(\theta, \theta_0), \qquad \xi \leftarrow \xi + (1-\gamma)(1-m)(\theta - \xi)

        \gamma = 1 - e^{-D}, \qquad D = \operatorname{mean}_{y,d} \frac{(m_{y,d} - \mu_{y,d})^2}{v_{y,d} + 10^{-6}}
        """,
        paper=Paper(
            "Hoang, Vo and Do",
            "Persistent Test-time Adaptation in Recurring Testing Scenarios",
            "NeurIPS 2024",
            code="hthieu166/petta",
        ),
        needs="a linear classifier head",
        cost="one of the batch, the others of the memory",
    )

    prepared_with: ClassVar[tuple[str, ...]] = ("source_samples",)
    statistics_held: ClassVar[tuple[str, ...]] = ("statistics", "teacher_statistics", "source_statistics")

    pull: NonNegative = 10.0
    """lambda_0: weight of the pull to the source at full drift."""
    pull_by: Literal["cosine", "l2"] = "cosine"
    """R: "cosine", or "l2", the squared distance."""
    anchor_weight: NonNegative = 1.0
    """w, of the agreement with the source model."""
    prototype_momentum: Share = 0.95
    """Of m."""
    source_samples: Annotated[int, Ge(2)] = 100_000
    """At most so many source images are used."""

    @classmethod
    def for_cifar(cls, **changes: Any) -> PeTTA:
        """The published settings for CIFAR-10 and CIFAR-100."""
        return cls(**{"symmetric": True, **changes})

    @property
    def needs_source(self) -> str | None:
        return "source images, unlabelled, for the mean and variance of each class's features"

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        Features.of(model)
        return super().configure(model, statistics)

    @torch.no_grad()
    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        counts = sums = squares = torch.zeros(0)
        seen = 0
        for images in source:
            logits, features = Features.of(network.module).along(network, images[: self.source_samples - seen])
            features = features.double()
            if seen == 0:
                counts = features.new_zeros(logits.shape[1], 1)
                sums, squares = features.new_zeros(2, logits.shape[1], features.shape[1])
            members = functional.one_hot(logits.argmax(1), logits.shape[1]).to(features).T
            counts += members.sum(1, keepdim=True)
            sums += members @ features
            squares += members @ features.square()
            seen += len(logits)
            if seen >= self.source_samples:
                break
        mean, variance = _moments(counts, sums, squares)
        of_all = _moments(counts.sum(0), sums.sum(0), squares.sum(0))
        known = counts >= 2  # a class that was predicted less often has no variance: it gets that of all features
        return {
            "feature_means": torch.where(known, mean, of_all[0]).to(network.arena.values.dtype),
            "feature_variances": torch.where(known, variance, of_all[1]).to(network.arena.values.dtype),
        }

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        return [
            *super().fields(network, num_classes),
            Field("prototypes", lambda: network.constants["feature_means"].clone()),
            Field("teacher_rate", lambda: 1.0 - self.teacher_momentum),
        ]

    def forward(self, network: Network, images: Tensor, state: State) -> Forward:
        with self.teaching(network, state):
            return Forward(*Features.of(network.module).along(network, images))

    def loss(self, step: Step, state: State) -> Objective:
        network, arena = step.network, step.network.arena
        drift, prototypes = self._drift(step, state)
        bank = self.remember(step, state)
        images = bank.images
        target, teacher_statistics = self.run_as(
            state.tensor("teacher"), network, images, state.tensor("teacher_statistics")
        )
        anchor, source_statistics = self.run_as(arena.source, network, images, state.tensor("source_statistics"))
        with torch.set_grad_enabled(self.symmetric):  # otherwise this only moves the statistics, as published
            plain, between = self.run(network, images, state.tensor("statistics"))
        logits, statistics = self.run(network, self.views(step, images), between)

        loss = self.divergence(logits, target).mean()
        if self.symmetric:
            loss = 0.5 * loss + 0.5 * self.divergence(plain, target).mean()
        loss = loss + drift * self.pull * self._distance(arena)
        loss = loss + self.anchor_weight * losses.cross_entropy(anchor, logits).mean()
        moved = {
            "statistics": statistics,
            "teacher_statistics": teacher_statistics,
            "source_statistics": source_statistics,
            "prototypes": prototypes,
        }
        rate = (1.0 - drift) * (1.0 - self.teacher_momentum)
        updates = {**bank.updates(), **moved, "teacher_rate": rate}
        return Objective(refusable(loss, *moved.values()), selected=len(bank), updates=updates)

    @torch.no_grad()
    def _drift(self, step: Step, state: State) -> tuple[float, Tensor]:
        """g of before this batch, and the prototypes m [classes, width] of after it."""
        prototypes, constants = state.tensor("prototypes"), step.constants
        features = step.from_forward(Tensor).to(prototypes)  # of the teacher's answer
        predicted = step.logits.argmax(1)
        counts = predicted.bincount(minlength=len(prototypes))
        present = counts.nonzero()[:, 0]
        old = prototypes[present]
        offset = old - constants["feature_means"][present]
        divergence = float((offset.square() / (constants["feature_variances"][present] + 1e-6)).mean())
        by_class = features[predicted.argsort(stable=True)]
        means = torch.segment_reduce(by_class, "mean", lengths=counts[present])
        updated = torch.lerp(old, means, 1.0 - self.prototype_momentum)
        return -math.expm1(-divergence), prototypes.index_copy(0, present, updated)

    def _distance(self, arena: Arena) -> Tensor:
        """R, with a graph to the adapted parameters."""
        lengths = torch.tensor([span.stop - span.start for span in arena.tensors], device=arena.values.device)

        def per_tensor(values: Tensor) -> Tensor:
            return torch.segment_reduce(values, "sum", lengths=lengths)

        values, source = arena.parameter, arena.source
        if self.pull_by == "l2":
            return per_tensor((values - source).square()).mean()
        norms = (per_tensor(values.square()) * per_tensor(source.square())).clamp(min=1e-16).sqrt()
        return -(per_tensor(values * source) / norms).mean()

    def after_step(self, step: Step, state: State) -> None:
        state.tensor("teacher").lerp_(step.network.arena.values, state.number("teacher_rate"))

    def passes(self, selected: float) -> tuple[float, float]:
        # Forwards: the teacher's answer; teacher, source and twice the student on the bank.
        return 1.0 + 4.0 * selected, (2.0 if self.symmetric else 1.0) * selected


def _moments(counts: Tensor, sums: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance from sums over `counts` samples; finite, whatever the count."""
    mean = sums / counts.clamp(min=1.0)
    return mean, ((squares - sums * mean) / (counts - 1.0).clamp(min=1.0)).clamp(min=0.0)
