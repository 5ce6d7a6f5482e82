"""Test-time batch statistics: no gradient, only other means and variances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from tidefast.core.constraints import Share
from tidefast.core.normalization import Statistics
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.source import Source


@registry.register("batchnorm", "bn")
@dataclass(frozen=True)
class BatchNorm(Source):
    """Batch normalisation layers use the statistics of the batch at hand; other networks are as the source."""

    about: ClassVar[About] = About(
        title="BatchNorm",
        family="Without gradients",
        adapts="statistics",
        equation=r"\mu = \mu_{batch}, \qquad \sigma^2 = \sigma^2_{batch}",
        paper=Paper(
            "Schneider and others",
            "Improving robustness against common corruptions by covariate shift adaptation",
            "NeurIPS 2020",
            code="bethgelab/robustness",
        ),
    )

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_batch()
        return ()


@registry.register("alphabatchnorm", "alpha_batchnorm", "bn_alpha")
@dataclass(frozen=True)
class AlphaBatchNorm(Source):
    """Batch normalisation with (1 - alpha) x source + alpha x batch statistics, the variance unbiased."""

    about: ClassVar[About] = About(
        title="AlphaBatchNorm",
        family="Without gradients",
        adapts="statistics",
        equation=r"""
        \mu = (1-\alpha)\,\mu_{source} + \alpha\,\mu_{batch}, \qquad
        \sigma^2 = (1-\alpha)\,\sigma^2_{source} + \alpha\,\sigma^2_{batch}
        """,
        paper=BatchNorm.about.paper,
    )

    together: ClassVar[bool] = False  # the layers mix the statistics of all that they are given

    alpha: Share = 0.1
    """Share of the batch's own statistics."""

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_mixture(self.alpha)
        return ()
