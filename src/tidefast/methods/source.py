"""Source: the model as it was trained, never adapted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from tidefast.core.normalization import Statistics
from tidefast.core.state import State
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About
from tidefast.methods.base import Method, registry


@registry.register("source")
@dataclass(frozen=True)
class Source(Method):
    """Predicts with the source parameters and the source's running statistics."""

    about: ClassVar[About] = About(
        title="Source",
        family="Without gradients",
        adapts="nothing",
        equation=r"\hat y = \arg\max_c f_{\theta_0}(x)_c",
    )

    together: ClassVar[bool] = True

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        return ()

    def loss(self, step: Step, state: State) -> Objective:
        return Objective(loss=None, selected=0, step=False)

    def passes(self, selected: float) -> tuple[float, float]:
        return 1.0, 0.0
