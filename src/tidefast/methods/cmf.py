"""CMF: ROID's objective with a Kalman filter over the parameters in place of the fixed anchor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidefast.core.constraints import NonNegative, Share
from tidefast.core.network import Network
from tidefast.core.state import Field, State
from tidefast.core.step import Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.shared.soft_likelihood import SoftLikelihood

_REFERENCE_SIZE = 38_400
"""Adapted numbers of a ViT-B/16, for which the published process noise was chosen."""


@registry.register("cmf")
@dataclass(frozen=True)
class CMF(SoftLikelihood):
    """Hidden parameters drift to the source (`alpha`), take in the live ones by the filter's gain, and pull them back.

    theta <- gamma theta + (1 - gamma) hidden. The process noise `q` scales with the number of adapted numbers.
    """

    about: ClassVar[About] = About(
        title="CMF",
        family="Weighted and averaged",
        adapts="scale and shift",
        equation=r"""
        h \leftarrow \alpha h + (1-\alpha)\theta_0, \qquad h \leftarrow \beta h + (1-\beta)\theta, \qquad
        \theta \leftarrow \gamma\theta + (1-\gamma)h
        """,
        paper=Paper(
            "Lee and Chang",
            "Continual Momentum Filtering on Parameter Space for Online Test-time Adaptation",
            "ICLR 2024",
        ),
    )

    alpha: Share = 0.99
    """How slowly the hidden parameters return to the source."""
    gamma: Share = 0.99
    """How slowly the live parameters are drawn to the hidden ones."""
    q: NonNegative = 0.005
    """Process noise for the parameters of a ViT-B/16; scaled by their number."""
    reset_variance: bool = True
    """Whether a reset also restarts the filter's variance; the published code forgets to."""

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        return [
            *super().fields(network, num_classes),
            Field("hidden", network.arena.source.clone, layered=True),
            Field("variance", lambda: 0.0, lifetime="episode" if self.reset_variance else "stream"),
        ]

    def after_step(self, step: Step, state: State) -> None:
        arena = step.network.arena
        noise = self.q * len(arena) / _REFERENCE_SIZE
        hidden = self.alpha * state.tensor("hidden") + (1.0 - self.alpha) * arena.source
        variance = self.alpha**2 * state.number("variance") + noise
        measurement = 1.0 - noise
        gain = max(measurement / (variance + measurement), 0.89)
        gain = 1.0 if gain >= 0.9999 else gain
        hidden = gain * hidden + (1.0 - gain) * arena.values
        state.update({"variance": gain * variance, "hidden": hidden})
        arena.assign(self.gamma * arena.values + (1.0 - self.gamma) * hidden)
