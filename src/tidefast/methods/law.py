"""LAW: layers learn faster, the more the loss has depended on them so far."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from tidefast.core.arena import Arena
from tidefast.core.constraints import Positive
from tidefast.core.network import Network
from tidefast.core.state import Field, State, Value
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.shared.layer_rates import LayerRates, mean_per_tensor, spread


@registry.register("law")
@dataclass(frozen=True)
class LAW(LayerRates):
    """The rate of tensor k is ((v_k - min v) / (max v - min v))^tau, where v_k is the root of its importance.

    Importance is the mean square of the gradient of the cross-entropy to the model's own labels, summed over all steps
    since the last reset. The most important tensor learns at full rate, the least important not at all.
    """

    about: ClassVar[About] = About(
        title="LAW",
        family="Weighted and averaged",
        adapts="convolutions, scale and shift",
        equation=r"""
        A_k \leftarrow A_k + \mathrm{mean}\left[\left(\nabla_k \mathrm{CE}(z, \hat y)\right)^2\right], \qquad
        r_k = \left(\frac{\sqrt{A_k} - \min_j \sqrt{A_j}}{\max_j \sqrt{A_j} - \min_j \sqrt{A_j} +
        10^{-8}}\right)^{\tau}

        L = \frac1B \sum_i H(z_i) + 0.01\,C\,\frac1B \sum_i H(z_i, z_i^a), \qquad
        \theta_k \leftarrow \theta_k - r_k\,\eta\,\frac{g}{|g| + 10^{-8}}, \quad g = \nabla_k L
        """,
        paper=Paper(
            "Park and others",
            "Layer-wise Auto-Weighting for Non-Stationary Test-Time Adaptation",
            "WACV 2024",
            code="junia3/LayerwiseTTA",
        ),
    )

    tau: Positive = 1.0
    """1 on ImageNet and CIFAR-10, 0.6 on CIFAR-100."""
    stale_gradient: bool = False
    """Whether each step's gradient is added to the one that is measured in the next, as in the published code."""

    @classmethod
    def for_classes(cls, num_classes: int, **changes: Any) -> LAW:
        """The published settings for a number of classes: CIFAR-10, CIFAR-100 or ImageNet sized."""
        if num_classes < 50:
            return cls(**{"learning_rate": 1e-3, **changes})
        return cls(**{**({"learning_rate": 5e-5, "tau": 0.6} if num_classes < 500 else {}), **changes})

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        arena = network.arena
        # Sums are comparable only over the same steps, so a reset of some layers restarts those of all.
        fields = [Field("importance", lambda: arena.values.new_zeros(len(arena.tensors)))]
        if self.stale_gradient:
            fields.append(Field("previous", lambda: torch.zeros_like(arena.values)))
        return [*super().fields(network, num_classes), *fields]

    def probe(self, logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits, logits.detach().argmax(1))

    def measure(self, arena: Arena, state: State) -> dict[str, Value]:
        gradient = arena.gradients + state.tensor("previous") if self.stale_gradient else arena.gradients
        return {"importance": state.tensor("importance") + mean_per_tensor(arena, gradient.square())}

    def gradient(self, step: Step, state: State) -> Objective:
        objective = super().gradient(step, state)
        if not self.stale_gradient:
            return objective
        previous = step.network.arena.gradients.clone()
        return dataclasses.replace(objective, updates={**objective.updates, "previous": previous})

    def rates(self, arena: Arena, state: State) -> Tensor:
        values = state.tensor("importance").sqrt()
        low, high = values.min(), values.max()
        return spread(arena, ((values - low) / (high - low + 1e-8)) ** self.tau)
