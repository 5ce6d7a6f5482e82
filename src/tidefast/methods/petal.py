"""PETAL: CoTTA with a prior learnt on the source, and the return of those weights that matter least."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from annotated_types import Ge
from torch import Tensor

from tidefast.core.constraints import Count, NonNegative, Share
from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.cotta import CoTTA
from tidefast.methods.shared.swag import weight_average

P = TypeVar("P", bound="PETAL")
_LEAST_VARIANCE = 1e-6
_START = "start"


@registry.register("petal")
@dataclass(frozen=True)
class PETAL(CoTTA):
    """L = L_CoTTA + prior_weight / 2 x sum_k (theta_k - mu_k)^2 / (v_k + 1e-6).

    The mean mu and variance v of each weight come from further training on the source (SWAG); mu is where adaptation
    starts, what weights return to, and whose confidence decides on views. After each update those weights of the
    student return whose squared gradient lies below the quantile `restore` of all of them.
    """

    about: ClassVar[About] = About(
        title="PETAL",
        family="With a teacher",
        adapts="all weights",
        equation=r"""
        L = L_{\text{CoTTA}} + \frac{\gamma}{2} \sum_k \frac{(\theta_k - \mu_k)^2}{v_k + 10^{-6}}, \qquad
        \theta_k \leftarrow \mu_k \text{ where } g_k^2 < Q_\delta(g^2), \qquad g = \nabla_\theta L
        """,
        paper=Paper(
            "Brahma and Rai",
            "A Probabilistic Framework for Lifelong Test-Time Adaptation",
            "CVPR 2023",
            code="dhanajitb/petal",
        ),
        cost="32 more forwards where the start model is unsure",
    )

    prepared_with: ClassVar[tuple[str, ...]] = ("swag_epochs", "swag_snapshots", "swag_rate", "swag_final_rate")

    restore: Share = 0.003
    """The quantile delta of the rule "fisher"; of the rule "random" the probability, published as 0.001."""
    restore_rule: Literal["fisher", "random"] = "fisher"
    """Which weights return: "fisher", those with the smallest squared gradient (FIM), or "random" ones (SRes)."""
    prior_weight: NonNegative = 1e-11
    """gamma. At 0 there is no prior, no source data is needed, and adaptation starts at the model as it is."""
    swag_epochs: Annotated[int, Ge(2)] = 5
    """Passes of further training over the source data."""
    swag_snapshots: Count = 1
    """In each epoch but the first."""
    swag_rate: Share = 8e-4
    """Learning rate in the first two epochs."""
    swag_final_rate: Share = 0.01
    """Learning rate that it rises to, in the fifth epoch."""

    @classmethod
    def for_cifar(cls: type[P], num_classes: int = 10, **changes: Any) -> P:
        """The published settings for CIFAR-10 and CIFAR-100; the optimiser there is Adam with 1e-3."""
        restore = 0.01 if changes.get("restore_rule") == "random" else 0.03
        return super().for_cifar(num_classes, **{"restore": restore, "prior_weight": 1e-9, **changes})

    @property
    def needs_source(self) -> str | None:
        return "labelled source images" if self.prior_weight > 0 else None

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        mean, variance = weight_average(
            network,
            source,
            epochs=self.swag_epochs,
            snapshots=self.swag_snapshots,
            rate=self.swag_rate,
            final_rate=self.swag_final_rate,
        )
        return {_START: mean, "prior_variance": variance}

    def start(self, constants: Mapping[str, Tensor]) -> Tensor | None:
        return constants.get(_START)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        # Set and used within one step, so never in a snapshot: the weights that return after it.
        returning = Field("returning", lambda: None, shape=(len(network.arena),))
        return [*super().fields(network, num_classes), returning]

    def gradient(self, step: Step, state: State) -> Objective:
        objective, arena = super().gradient(step, state), step.network.arena
        if self.prior_weight > 0:
            drift, variance = arena.values - arena.source, step.constants["prior_variance"]
            arena.gradients.addcdiv_(drift, variance + _LEAST_VARIANCE, value=self.prior_weight)
        if self.restore_rule == "random":
            return objective
        fisher = arena.gradients.square()
        returning = fisher < quantile(fisher, self.restore)
        return dataclasses.replace(objective, updates={**objective.updates, "returning": returning})

    def returning(self, step: Step, state: State) -> Tensor:
        if self.restore_rule == "random":
            return super().returning(step, state)
        returning, state["returning"] = state.tensor("returning"), None
        return returning


def quantile(values: Tensor, share: float) -> Tensor:
    """The quantile `share` of a vector of any length, interpolated between neighbours, without sorting it.

    >>> quantile(torch.tensor([4.0, 1.0, 2.0, 8.0]), 0.5).item()
    3.0
    """
    position = share * (len(values) - 1)
    below = min(math.floor(position), max(len(values) - 2, 0))
    smallest = values.topk(min(below + 2, len(values)), largest=False, sorted=False).values
    neighbours = smallest.topk(min(2, len(smallest))).values  # the larger first
    return torch.lerp(neighbours[-1], neighbours[0], position - below)
