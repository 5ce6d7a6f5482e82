"""The coefficients that follow the inconsistency phi: lambda_F, how strongly to recover, and mu_C, of C-bar.

Each comes in the five expressions of the paper's tables 20 and 21.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidefast.core.constraints import Share
from tidefast.core.registry import Registry
from tidefast.resets.asr.part import Part


@dataclass(frozen=True)
class Expression(Part):
    """Base of both kinds."""

    adapts: ClassVar[bool] = True
    """Whether it depends on phi, which costs a pass of the source model."""

    def of(self, inconsistency: float, scale: float, /) -> float:
        """The coefficient, given phi and lambda0 or mu0: lambda_F takes phi of the step before, mu_C of this one."""
        raise NotImplementedError(f"{type(self).__name__} must define of()")


class Strength(Expression):
    """Base of the expressions for lambda_F."""


strengths: Registry[Strength] = Registry("strength", Strength)


@strengths.register("squared")
@dataclass(frozen=True)
class Squared(Strength):
    """lambda0 phi^2 (eq. 6)."""

    def of(self, inconsistency: float, lambda0: float, /) -> float:
        return lambda0 * inconsistency**2


@strengths.register("linear")
@dataclass(frozen=True)
class Linear(Strength):
    """lambda0 phi."""

    def of(self, inconsistency: float, lambda0: float, /) -> float:
        return lambda0 * inconsistency


@strengths.register("inverse")
@dataclass(frozen=True)
class Inverse(Strength):
    """lambda0 (1 - phi)^2: strongest where the source model agrees."""

    def of(self, inconsistency: float, lambda0: float, /) -> float:
        return lambda0 * (1.0 - inconsistency) ** 2


@strengths.register("inconsistency")
@dataclass(frozen=True)
class Bare(Strength):
    """phi itself, whatever lambda0."""

    def of(self, inconsistency: float, lambda0: float, /) -> float:
        return inconsistency


@strengths.register("constant")
@dataclass(frozen=True)
class ConstantStrength(Strength):
    """lambda0."""

    adapts: ClassVar[bool] = False

    def of(self, inconsistency: float, lambda0: float, /) -> float:
        return lambda0


class Momentum(Expression):
    """Base of the expressions for mu_C."""


momenta: Registry[Momentum] = Registry("momentum", Momentum)


@momenta.register("linear")
@dataclass(frozen=True)
class Rising(Momentum):
    """1 - mu0 (1 - phi) (eq. 7)."""

    def of(self, inconsistency: float, mu0: float, /) -> float:
        return mu0 * inconsistency + 1.0 - mu0


@momenta.register("squared")
@dataclass(frozen=True)
class RisingSquared(Momentum):
    """1 - mu0 (1 - phi^2)."""

    def of(self, inconsistency: float, mu0: float, /) -> float:
        return 1.0 - mu0 * (1.0 - inconsistency**2)


@momenta.register("inverse")
@dataclass(frozen=True)
class Falling(Momentum):
    """1 - mu0 phi: fastest where the source model disagrees."""

    def of(self, inconsistency: float, mu0: float, /) -> float:
        return 1.0 - mu0 * inconsistency


@momenta.register("inconsistency")
@dataclass(frozen=True)
class BareMomentum(Momentum):
    """phi itself, whatever mu0."""

    def of(self, inconsistency: float, mu0: float, /) -> float:
        return inconsistency


@momenta.register("constant")
@dataclass(frozen=True)
class ConstantMomentum(Momentum):
    """Always `value`, or 1 - mu0 without one; 1 holds the threshold where it starts."""

    value: Share | None = None

    adapts: ClassVar[bool] = False

    def of(self, inconsistency: float, mu0: float, /) -> float:
        return 1.0 - mu0 if self.value is None else self.value
