"""Tent: entropy minimisation on every sample."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import losses
from holdfast.methods.base import Method, registry
from holdfast.state import State
from holdfast.step import Objective, Step


@registry.register("tent")
@dataclass(frozen=True)
class Tent(Method):
    """L = mean_i H(z_i)."""

    def loss(self, step: Step, state: State) -> Objective:
        return Objective(losses.entropy(step.logits).mean(), selected=len(step.logits))
