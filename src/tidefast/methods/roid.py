"""ROID: certainty and diversity weighting, consistency, and a steady pull to the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidefast.core.constraints import Share
from tidefast.core.network import Network
from tidefast.core.state import Field, State
from tidefast.core.step import Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.shared.soft_likelihood import SoftLikelihood


@registry.register("roid")
@dataclass(frozen=True)
class ROID(SoftLikelihood):
    """After each step theta <- m theta + (1 - m) anchor, where the anchor is the source.

    ASR in its released form moves the anchor (`resets.ASR(target="anchor")`), so the anchor is state.
    """

    about: ClassVar[About] = About(
        title="ROID",
        family="Weighted and averaged",
        adapts="scale and shift",
        equation=r"""
        L = \frac1B \sum_{i \in S} w_i \left[ SLR(z_i) + SCE(z_i, z'_i) \right], \qquad
        \theta \leftarrow 0.99\,\theta + 0.01\,\theta_0
        """,
        paper=Paper(
            "Marsden, Döbler and Yang",
            "Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior Correction",
            "WACV 2024",
            code="mariodoebler/test-time-adaptation",
        ),
    )

    source_momentum: Share = 0.99
    """m: how slowly the parameters are drawn to the anchor."""

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        size = len(network.arena)
        anchor = Field("anchor", lambda: None, layered=True, shape=(size,), anchor=True)  # None: the source itself
        return [*super().fields(network, num_classes), anchor]

    def after_step(self, step: Step, state: State) -> None:
        anchor = state.optional_tensor("anchor")
        arena = step.network.arena
        anchor = arena.source if anchor is None else anchor
        arena.assign(self.source_momentum * arena.values + (1.0 - self.source_momentum) * anchor)
