"""PALM: layers with a small gradient learn, the faster, the less steady the effect of their weights is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor

from tidefast.core import losses
from tidefast.core.arena import Arena
from tidefast.core.constraints import NonNegative, Positive
from tidefast.core.network import Network
from tidefast.core.state import Field, State, Value
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.shared.layer_rates import LayerRates, mean_per_tensor, spread

_EPSILON = 1e-8


@registry.register("palm")
@dataclass(frozen=True)
class PALM(LayerRates):
    """Tensor k learns where |g_k|_1 <= gradient_limit, g the gradient of sum_c -log softmax(z / temperature)_c.

    Its rate is mean(U / S): S is the moving average of the sensitivity s = |theta g|, and U = |s - S|. The entropy
    term counts only samples below `entropy_margin`.
    """

    about: ClassVar[About] = About(
        title="PALM",
        family="Weighted and averaged",
        adapts="convolutions, scale and shift",
        equation=r"""
        g = \nabla_\theta \frac1B \sum_i \sum_c -\ln \sigma(z_i / T)_c, \qquad \text{selected: } \|g_k\|_1 \le \eta

        s = |\theta_k g_k|, \qquad S_k \leftarrow \beta_3 S_k + (1 - \beta_3)\,s, \qquad
        r_k = \mathrm{mean}\,\frac{|s - S_k| + 10^{-8}}{S_k + 10^{-8}}

        L = \operatorname{mean}_{i:\,H(z_i) < 0.4} H(z_i) + 0.01\,C\,\frac1B \sum_i H(z_i, z_i^a)
        """,
        paper=Paper(
            "Maharana, Zhang and Guo",
            "PALM: Pushing Adaptive Learning Rate Mechanisms for Continual Test-Time Adaptation",
            "AAAI 2025",
            code="sarthaxxxxx/PALM",
        ),
    )

    learning_rate: NonNegative = 5e-5
    """Of the default optimiser, at a rate of 1."""
    sensitivity_momentum: Annotated[float, Interval(ge=0.0, le=0.999)] = 0.5
    """beta_3; 0.1 on CIFAR-100. At 1 S would stay 0."""
    temperature: Positive = 1000.0
    """1000 on ImageNet, 100 on CIFAR-100, 50 on CIFAR-10."""
    gradient_limit: NonNegative = 0.3
    """eta; 0.3 on ImageNet, 0.5 on CIFAR-100, 1 on CIFAR-10."""
    entropy_margin: NonNegative = 0.4
    """In nats, whatever the number of classes."""
    update_unselected: bool = False
    """Whether a tensor once selected goes on at its last rate, as in the published code; else it rests."""

    @classmethod
    def for_classes(cls, num_classes: int, **changes: Any) -> PALM:
        """The published settings for a number of classes: CIFAR-10, CIFAR-100 or ImageNet sized."""
        published: dict[str, float] = {}
        if num_classes < 50:
            published = {"learning_rate": 5e-4, "temperature": 50.0, "gradient_limit": 1.0}
        elif num_classes < 500:
            published = {"learning_rate": 5e-4, "temperature": 100.0, "gradient_limit": 0.5}
            published |= {"weight_decay": 5e-4, "sensitivity_momentum": 0.1}
        return cls(**{**published, **changes})

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        def zeros() -> Tensor:
            return torch.zeros_like(network.arena.values)

        own = [Field("sensitivity", zeros, layered=True), Field("rates", zeros, layered=True)]
        return [*super().fields(network, num_classes), *own]

    def probe(self, logits: Tensor) -> Tensor:
        return -(logits / self.temperature).log_softmax(1).sum(1).mean()

    def measure(self, arena: Arena, state: State) -> dict[str, Value]:
        norms = torch.stack([arena.gradients[span.start : span.stop].abs().sum() for span in arena.tensors])
        chosen = spread(arena, norms <= self.gradient_limit)
        now, old = (arena.values * arena.gradients).abs(), state.tensor("sensitivity")
        average = torch.where(chosen, torch.lerp(now, old, self.sensitivity_momentum), old)
        ratio = ((now - average).abs() + _EPSILON) / (average + _EPSILON)
        others = state.tensor("rates") if self.update_unselected else torch.zeros_like(now)
        rates = torch.where(chosen, spread(arena, mean_per_tensor(arena, ratio)), others)
        return {"sensitivity": average, "rates": rates}

    def rates(self, arena: Arena, state: State) -> Tensor:
        return state.tensor("rates")

    def entropy(self, logits: Tensor) -> Tensor:
        entropy = losses.entropy(logits)
        sure = entropy[entropy.detach() < self.entropy_margin]
        return sure.mean() if len(sure) else entropy.sum() * 0.0
