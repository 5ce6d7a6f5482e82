"""Test-time batch statistics: no gradient, only other means and variances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from tidefast.core.constraints import Share
from tidefast.core.normalization import Statistics
from tidefast.methods.base import registry
from tidefast.methods.source import Source


@registry.register("batchnorm", "bn")
@dataclass(frozen=True)
class BatchNorm(Source):
    """Batch normalisation layers use the statistics of the batch at hand; other networks are as the source."""

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_batch()
        return ()


@registry.register("alphabatchnorm", "alpha_batchnorm", "bn_alpha")
@dataclass(frozen=True)
class AlphaBatchNorm(Source):
    """Batch normalisation with (1 - alpha) x source + alpha x batch statistics, the variance unbiased."""

    alpha: Share = 0.1

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_mixture(self.alpha)
        return ()
