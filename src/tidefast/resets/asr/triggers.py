"""When to reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidefast.core.constraints import Count, Positive
from tidefast.core.registry import Registry
from tidefast.resets.asr.part import Part


@dataclass(frozen=True)
class Trigger(Part):
    """Base of the triggers."""

    watches: ClassVar[bool] = True
    """Whether it looks at the concentration; else that and its average are not computed."""

    def fires(self, concentration: float, threshold: float, steps: int) -> bool:
        """Whether to reset now: C_t, C-bar of t-1, and steps since the last reset, this one included."""
        raise NotImplementedError(f"{type(self).__name__} must define fires()")


registry: Registry[Trigger] = Registry("trigger", Trigger)


@registry.register("adaptive")
@dataclass(frozen=True)
class Adaptive(Trigger):
    """When C_t > factor x C-bar + delay (eq. 2 has factor 1 and delay 0).

    Concentrations are negative: a factor below 1 makes resets rarer, one above 1 more frequent.
    """

    delay: float = 0.0
    """epsilon: how far C_t must be above the threshold."""
    factor: Positive = 1.0

    def fires(self, concentration: float, threshold: float, steps: int) -> bool:
        return concentration > self.factor * threshold + self.delay


@registry.register("interval")
@dataclass(frozen=True)
class Interval(Trigger):
    """Every T steps, whatever the predictions."""

    every: Count = 1000

    watches: ClassVar[bool] = False

    def fires(self, concentration: float, threshold: float, steps: int) -> bool:
        return steps >= self.every
