"""What recovery pulls to: averages of squared gradients and of parameters.

At every step each is gathered into a total; at a reset the total becomes, or changes, the average in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tidefast.core.registry import Registry
from tidefast.core.state import Lifetime
from tidefast.resets.asr.part import Part


@dataclass(frozen=True)
class Accumulation(Part):
    """Base of the accumulations; `momentum` is mu_F or mu_theta."""

    remembers: ClassVar[bool] = True
    """Whether anything is accumulated; without it there is no recovery."""
    lifetime: ClassVar[Lifetime] = "stream"
    """How long a total lasts: "episode", until the next reset."""
    precise: ClassVar[bool] = False
    """Whether totals are in float64, for those that grow as long as the stream."""

    def gather(self, total: Tensor, value: Tensor, factor: Tensor | None, momentum: float) -> None:
        """Add a step's value, times `factor` where there is one, to the total."""
        if factor is None:
            total.add_(value)
        else:
            total.addcmul_(value, factor)

    def fold(self, old: Tensor | None, total: Tensor, steps: int, momentum: float) -> Tensor:
        """The average from now on, at a reset; `steps` is how many were gathered in the total."""
        raise NotImplementedError(f"{type(self).__name__} must define fold()")


registry: Registry[Accumulation] = Registry("accumulation", Accumulation)


@registry.register("hybrid")
@dataclass(frozen=True)
class Hybrid(Accumulation):
    """Evenly since the last reset, and those averages exponentially over resets (eq. 5)."""

    lifetime: ClassVar[Lifetime] = "episode"

    def fold(self, old: Tensor | None, total: Tensor, steps: int, momentum: float) -> Tensor:
        new = total / steps
        return new if old is None else momentum * old + (1.0 - momentum) * new


@registry.register("cumulative")
@dataclass(frozen=True)
class Cumulative(Accumulation):
    """Evenly over the whole stream so far: CMA only."""

    precise: ClassVar[bool] = True

    def fold(self, old: Tensor | None, total: Tensor, steps: int, momentum: float) -> Tensor:
        return total / steps


@registry.register("exponential")
@dataclass(frozen=True)
class Exponential(Accumulation):
    """Exponentially over the steps of the whole stream: EMA only, without the bias of its beginning at 0."""

    def gather(self, total: Tensor, value: Tensor, factor: Tensor | None, momentum: float) -> None:
        total.mul_(momentum)
        if factor is None:
            total.add_(value, alpha=1.0 - momentum)
        else:
            total.addcmul_(value, factor, value=1.0 - momentum)

    def fold(self, old: Tensor | None, total: Tensor, steps: int, momentum: float) -> Tensor:
        return total / (1.0 - momentum**steps) if momentum < 1.0 else total


@registry.register("none")
@dataclass(frozen=True)
class Nothing(Accumulation):
    """Nothing is accumulated, and nothing recovered."""

    remembers: ClassVar[bool] = False
