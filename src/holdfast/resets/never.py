"""Never: no reset."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.resets.base import Reset, Verdict, registry
from holdfast.state import State
from holdfast.step import Step


@registry.register("never", "none")
@dataclass(frozen=True)
class Never(Reset):
    """Leaves the method alone."""

    def observe(self, step: Step, state: State) -> Verdict:
        return Verdict()
