"""Periodic: back to the source every so many batches (RDumb)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tidefast.core.constraints import Count
from tidefast.core.network import Network
from tidefast.core.state import Field, State
from tidefast.core.step import Step
from tidefast.resets.base import Reset, Verdict, registry


@registry.register("periodic", "rdumb")
@dataclass(frozen=True)
class Periodic(Reset):
    """A full reset of parameters, optimiser and the method's statistics after every `every` batches.

    Every batch counts, also one from which the method selected nothing.
    """

    quick: ClassVar[Mapping[str, Any]] = {"every": 2}

    every: Count = 1000

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        return [Field("batches", lambda: 0, lifetime="stream")]

    def observe(self, step: Step, state: State) -> Verdict:
        batches = int(state.number("batches")) + 1
        state["batches"] = batches % self.every
        return Verdict() if batches % self.every else Verdict(fraction=1.0, cut=0)
