"""SAR: sharpness-aware entropy minimisation on reliable samples, with recovery from collapse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from tidefast.core import losses
from tidefast.core.constraints import NonNegative, Positive
from tidefast.core.normalization import LAST_LAYERS, Statistics, outside, require_affine_names
from tidefast.core.state import State
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import Method, registry
from tidefast.resets.base import Reset
from tidefast.resets.confidence import Confidence


@registry.register("sar")
@dataclass(frozen=True)
class SAR(Method):
    """The gradient of the mean entropy, taken at the worst point within `rho` of the parameters.

    Only samples with entropy below the margin count, before and after the perturbation. When the moving
    average of that entropy falls under `reset_constant`, the model returns to the source.
    """

    about: ClassVar[About] = About(
        title="SAR",
        family="Entropy",
        adapts="scale and shift",
        equation=r"""
        g = \nabla L\left(\theta + \rho \frac{\nabla L(\theta)}{\|\nabla L(\theta)\|}\right), \qquad
        L = \text{mean of } H_i \text{ over } H_i < 0.4 \ln C
        """,
        paper=Paper(
            "Niu and others",
            "Towards Stable Test-Time Adaptation in Dynamic Wild World",
            "ICLR 2023",
            code="mr-eggplant/SAR",
        ),
    )
    busiest: ClassVar[Mapping[str, Any]] = {"entropy_margin": 1.1}

    entropy_margin: Positive = 0.4
    """E0 as a multiple of ln(classes)."""
    rho: NonNegative = 0.05
    """How far away the worst point is looked for."""
    reset_constant: NonNegative = 0.2
    """In nats, whatever the number of classes."""
    keep_momentum: bool = True
    """Whether the optimiser's state outlives SAR's own reset, as in the published code."""
    skip: tuple[str, ...] = LAST_LAYERS
    """Layers whose name contains one of these stay as they are, and so does one called exactly `norm`."""

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_batch()
        return require_affine_names(model, "SAR", outside(self.skip))

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=2.5e-4, momentum=0.9)

    def own_reset(self) -> Reset:
        return Confidence(threshold=self.reset_constant, watch="loss", keep_optimizer=self.keep_momentum)

    def gradient(self, step: Step, state: State) -> Objective:
        arena = step.network.arena
        margin = self.entropy_margin * math.log(step.num_classes)
        entropy = losses.entropy(step.logits)
        reliable = entropy.detach() < margin
        samples = reliable.nonzero()[:, 0]
        if len(samples) == 0:
            return Objective(loss=None, selected=0)
        step.backward(entropy[samples].mean())
        norm = arena.gradients.norm()
        step.checks.add("non-finite loss or gradient", norm)
        worst = arena.values + self.rho * arena.gradients / (norm + 1e-12)
        arena.zero_gradients()
        with arena.holding(worst):
            entropy = losses.entropy(step.network(step.images))
            samples = (reliable & (entropy.detach() < margin)).nonzero()[:, 0]
            if len(samples) == 0:
                return Objective(loss=None, selected=0)
            loss = entropy[samples].mean()
            step.backward(loss)
        return Objective(loss, selected=len(samples))

    def passes(self, selected: float) -> tuple[float, float]:
        return 2.0, 2.0
