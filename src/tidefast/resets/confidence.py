"""Confidence: back to the source when predictions become too certain (SAR's rule)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tidefast.core import losses
from tidefast.core.constraints import NonNegative, Positive, Share
from tidefast.core.measurement import Measurement
from tidefast.core.network import Network
from tidefast.core.state import Field, State
from tidefast.core.step import Step
from tidefast.resets.base import Reset, Verdict, registry


@registry.register("confidence")
@dataclass(frozen=True)
class Confidence(Reset):
    """A full reset when a moving average of the entropy of reliable samples falls below `threshold`.

    Reliable samples are those with entropy below `margin` x ln(classes); a batch without any leaves the
    average as it is. SAR itself watches its loss, which is that entropy at the perturbed parameters.
    """

    measures: ClassVar[Mapping[str, Measurement]] = {
        "running_loss": Measurement(
            "Moving average of the watched entropy or loss; a reset is due when it is low.", "nats"
        )
    }
    quick: ClassVar[Mapping[str, Any]] = {"threshold": 2.2, "margin": 1.0}  # fires often on ten classes

    threshold: NonNegative = 0.2
    """In nats, whatever the number of classes."""
    margin: Positive = 0.4
    momentum: Share = 0.9
    watch: Literal["entropy", "loss"] = "entropy"
    """What is averaged: the entropy of reliable samples, or the method's own loss."""
    keep_optimizer: bool = False

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        return [Field("average", lambda: None)]

    def observe(self, step: Step, state: State) -> Verdict:
        watched = self._watched(step)
        if watched is not None:
            old = watched if state["average"] is None else state.number("average")
            state["average"] = self.momentum * old + (1.0 - self.momentum) * watched
        if state["average"] is None:
            return Verdict()
        average = state.number("average")
        measured = {"running_loss": average}
        if average < self.threshold:
            return Verdict(fraction=1.0, cut=0, keep_optimizer=self.keep_optimizer, measurements=measured)
        return Verdict(measurements=measured)

    def _watched(self, step: Step) -> float | None:
        if self.watch == "loss":
            return step.loss
        entropy = losses.entropy(step.answer)
        reliable = entropy[entropy < self.margin * math.log(step.num_classes)]
        return float(reliable.mean()) if len(reliable) else None
