"""Never: no reset."""

from __future__ import annotations

from dataclasses import dataclass

from tidefast.core.state import State
from tidefast.core.step import Step
from tidefast.resets.base import Reset, Verdict, registry


@registry.register("never", "none")
@dataclass(frozen=True)
class Never(Reset):
    """Leaves the method alone."""

    def observe(self, step: Step, state: State) -> Verdict:
        return Verdict()
