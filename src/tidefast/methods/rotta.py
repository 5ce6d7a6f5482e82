"""RoTTA: a teacher with robust statistics and a balanced memory, for streams whose images are correlated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tidefast.core.constraints import Count
from tidefast.core.network import Network
from tidefast.core.state import Field, State
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.shared.memory import MemoryTeacher, refusable


@registry.register("rotta")
@dataclass(frozen=True)
class RoTTA(MemoryTeacher):
    """L = mean over the bank of w_i CE(t_i, s_i), w = exp(-A) / (1 + exp(-A)), A = age / capacity.

    t: the teacher on the remembered images, s: the student on augmented copies. A step is made with the batch in which
    the count of images passes a multiple of `every`; other batches are only answered and offered to the bank.
    """

    about: ClassVar[About] = About(
        title="RoTTA",
        family="With a teacher",
        adapts="scale and shift, statistics",
        equation=r"""
        L = \frac1M \sum_{i \in \text{memory}} \frac{e^{-a_i}}{1+e^{-a_i}}\, H\big(t(x_i), s(\tilde x_i)\big),
        \qquad
        \xi \leftarrow m\,\xi + (1-m)\,\theta, \qquad \mu \leftarrow (1-\alpha)\,\mu + \alpha\,\mu_\text{memory}
        """,
        paper=Paper(
            "Yuan, Xie and Li", "Robust Test-Time Adaptation in Dynamic Scenarios", "CVPR 2023", code="BIT-DA/RoTTA"
        ),
        needs="images of one size",
        cost="one of the batch, the others of the memory",
    )
    quick: ClassVar[Mapping[str, Any]] = {"every": 16}
    busiest: ClassVar[Mapping[str, Any]] = {"every": 2}

    every: Count = 64
    """Images from one step to the next; a batch makes at most one step."""

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        return [*super().fields(network, num_classes), Field("count", lambda: 0)]

    def loss(self, step: Step, state: State) -> Objective:
        bank = self.remember(step, state)
        count = int(state.number("count")) + len(step.images)
        updates = {**bank.updates(), "count": count % self.every}
        if count < self.every:
            return Objective(loss=None, selected=0, updates=updates, step=False)
        network = step.network
        target, teacher_statistics = self.run_as(
            state.tensor("teacher"), network, bank.images, state.tensor("teacher_statistics")
        )
        logits, statistics = self.run(network, self.views(step, bank.images), state.tensor("statistics"))
        weights = freshness(bank.ages.to(logits) / self.capacity)
        loss = refusable((weights * self.divergence(logits, target)).mean(), statistics, teacher_statistics)
        updates |= {"statistics": statistics, "teacher_statistics": teacher_statistics}
        return Objective(loss, selected=len(bank), updates=updates)

    def passes(self, selected: float) -> tuple[float, float]:
        return 1.0 + 2.0 * selected, selected  # the teacher's answer; teacher and student on the bank


def freshness(ages: Tensor) -> Tensor:
    """Weight of an image by its age in banks: 1/2 when new, then falling to 0.

    >>> [round(weight, 3) for weight in freshness(torch.tensor([0.0, 1.0])).tolist()]
    [0.5, 0.269]
    """
    return torch.sigmoid(-ages)
