"""How much to reset: the share of the layers, counted from the output."""

from __future__ import annotations

from dataclasses import dataclass

from tidefast.core.constraints import PositiveShare
from tidefast.core.registry import Registry
from tidefast.resets.asr.part import Part


@dataclass(frozen=True)
class Extent(Part):
    """Base of the extents."""

    def share(self, excess: float, r0: float, lambda_r: float) -> float:
        """The share of layers to reset; `excess` is C_t - C-bar, 0 when it is not measured."""
        raise NotImplementedError(f"{type(self).__name__} must define share()")


registry: Registry[Extent] = Registry("extent", Extent)


@registry.register("proportional")
@dataclass(frozen=True)
class Proportional(Extent):
    """r_t = min(1, r0 + lambda_r (C_t - C-bar)) (eq. 3)."""

    def share(self, excess: float, r0: float, lambda_r: float) -> float:
        return min(1.0, r0 + lambda_r * max(0.0, excess))


@registry.register("fixed")
@dataclass(frozen=True)
class Fixed(Extent):
    """Always the same share."""

    part: PositiveShare = 0.5

    def share(self, excess: float, r0: float, lambda_r: float) -> float:
        return self.part


@registry.register("full")
@dataclass(frozen=True)
class Full(Extent):
    """All layers."""

    def share(self, excess: float, r0: float, lambda_r: float) -> float:
        return 1.0
