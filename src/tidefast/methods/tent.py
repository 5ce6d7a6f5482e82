"""Tent: entropy minimisation on every sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidefast.core import losses
from tidefast.core.state import State
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import Method, registry


@registry.register("tent")
@dataclass(frozen=True)
class Tent(Method):
    """L = mean_i H(z_i)."""

    about: ClassVar[About] = About(
        title="Tent",
        family="Entropy",
        adapts="scale and shift",
        equation=r"L = \frac1B \sum_i H(z_i)",
        paper=Paper(
            "Wang and others",
            "Tent: Fully Test-Time Adaptation by Entropy Minimization",
            "ICLR 2021",
            code="DequanWang/tent",
        ),
    )

    together: ClassVar[bool] = True

    objective: losses.ObjectiveName = "entropy"
    """H: "entropy" of the softmax, or "come", the opinion entropy."""

    def loss(self, step: Step, state: State) -> Objective:
        return Objective(losses.OBJECTIVES[self.objective](step.logits).mean(), selected=len(step.logits))
