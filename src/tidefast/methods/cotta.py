"""CoTTA: a mean teacher over many views, and a random return of single weights to the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from tidefast.core.constraints import Count, Share
from tidefast.core.state import State
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.shared.teacher import MeanTeacher, drawn

C = TypeVar("C", bound="CoTTA")


@registry.register("cotta")
@dataclass(frozen=True)
class CoTTA(MeanTeacher):
    """L = mean_i SCE(z_i, t_i), t the teacher's logits.

    Where the source model is unsure of the batch (its mean confidence is below `confidence`), t is the mean of the
    teacher's logits over `views_averaged` augmented copies, and so is the answer. After each update every weight of
    the student returns to the source with probability `restore`. All layers adapt.
    """

    about: ClassVar[About] = About(
        title="CoTTA",
        family="With a teacher",
        adapts="all weights",
        equation=r"""
        L = \frac1B \sum_i \tfrac12\left[ H(t_i, z_i) + H(z_i, t_i) \right], \qquad
        \xi \leftarrow m\,\xi + (1-m)\,\theta, \qquad
        \theta_k \leftarrow \theta_{0,k} \text{ with probability } p
        """,
        paper=Paper("Wang and others", "Continual Test-Time Domain Adaptation", "CVPR 2022", code="qinenergy/cotta"),
        cost="32 more forwards where the source is unsure",
    )
    busiest: ClassVar[Mapping[str, Any]] = {"confidence": 0.0}

    restore: Share = 0.001
    """p: probability by which a weight returns to the source after a step."""
    confidence: Share = 0.1
    """Views are averaged where the source's mean confidence is below it."""
    views_averaged: Count = 32
    """Augmented copies of a batch that the teacher sees then."""

    @classmethod
    def for_cifar(cls: type[C], num_classes: int = 10, **changes: Any) -> C:
        """The published settings for CIFAR-10 and CIFAR-100; the optimiser there is Adam with 1e-3."""
        confidence = 0.92 if num_classes < 50 else 0.72
        return cls(**{"restore": 0.01, "confidence": confidence, "symmetric": False, **changes})

    def loss(self, step: Step, state: State) -> Objective:
        target = step.logits.detach()
        with torch.no_grad():
            unsure = float(step.source_logits().softmax(1).amax(1).mean()) < self.confidence
            if unsure:
                teacher = step.network.arena.holding(state.tensor("teacher"))
                with teacher:
                    views = [step.network(self.views(step)) for _ in range(self.views_averaged)]
                target = torch.stack(views).mean(0)
        loss = self.divergence(step.network(step.images), target).mean()
        return Objective(loss, selected=len(target), answer=target if unsure else None)

    def after_step(self, step: Step, state: State) -> None:
        super().after_step(step, state)
        arena = step.network.arena
        arena.assign(torch.where(self.returning(step, state), arena.source, arena.values))

    def returning(self, step: Step, state: State) -> Tensor:
        """Which weights of the student go back to the source after this step [len(arena)], true or false."""
        return drawn(step.network.arena, self.restore, step.generator)

    def passes(self, selected: float) -> tuple[float, float]:
        return 3.0, 1.0  # student, source and teacher; when the source is unsure, `views_averaged` more of the teacher
