"""Distribution: back to the source when the normalisation layers' outputs move away from those of source data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tidefast.core.constraints import Count, Positive
from tidefast.core.measurement import Measurement
from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.core.step import Step
from tidefast.core.validation import require_count
from tidefast.probes.outputs import MEANS, VARIANCES, OutputMoments, Outputs, of_source
from tidefast.resets.base import Reset, Verdict, registry


@registry.register("distribution")
@dataclass(frozen=True)
class Distribution(Reset):
    """A full reset when the mean distance of the last few batches exceeds `threshold` x that of the last many.

    The distance of a batch is the sum over normalisation layers of mean |m - M| + mean |v - V|: m and v are the mean
    and variance of each image's channels in the layer's output, M and V their averages over source images. The
    batch at hand counts only from the next one on, so that a change is seen one batch late at the soonest.
    """

    measures: ClassVar[Mapping[str, Measurement]] = {
        "distance": Measurement("Distance of the normalisation layers' outputs from those of source data."),
        "recent_distance": Measurement("Mean distance of the last few batches before this one.", beside="distance"),
        "usual_distance": Measurement("Mean distance of the last many batches before this one.", beside="distance"),
    }
    quick: ClassVar[Mapping[str, Any]] = {"threshold": 0.9, "short": 1, "long": 2}

    threshold: Positive = 1.1
    """tau."""
    short: Count | None = None
    """How many batches are the last few; None: as many as hold 120 images."""
    long: Count | None = None
    """How many batches are the last many, the few among them; None: as many as hold 600 images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.short is None) != (self.long is None):
            raise ValueError(
                f"short and long go together, got short={self.short!r}, long={self.long!r}: give both or none"
            )
        if self.short is not None and self.long is not None:
            require_count("long", self.long, low=self.short + 1)

    @property
    def needs_source(self) -> str | None:
        return "source images, unlabelled, in batches of the size of the stream's"

    def configure(self, model: nn.Module) -> None:
        Outputs.of(model)

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        return of_source(Outputs.of(network.module), source, network)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        return [
            Field("distance", lambda: None),
            Field("past", lambda: None, shape=(...,)),
            Field("first", lambda: None, lifetime="stream"),
        ]

    def windows(self, images: int) -> tuple[int, int]:
        """How many batches of so many images are the last few, and the last many.

        >>> Distribution().windows(64), Distribution().windows(40), Distribution().windows(1000)
        ((2, 9), (3, 15), (1, 2))
        """
        short = self.short or max(1, round(120 / images))
        return short, self.long or max(short + 1, round(600 / images))

    def watching(self, network: Network) -> AbstractContextManager[OutputMoments]:
        return Outputs.of(network.module).measuring()

    @torch.no_grad()
    def begin(self, step: Step, state: State, watched: OutputMoments) -> None:
        state["distance"] = float(watched.distance(step.constants[MEANS], step.constants[VARIANCES]))

    def observe(self, step: Step, state: State) -> Verdict:
        distance = state.number("distance")
        if not math.isfinite(distance):
            return Verdict()
        latest = step.constants[MEANS].new_tensor([distance])
        short, long = self.windows(len(step.images))
        past = state.optional_tensor("past")
        if past is None and state["first"] is not None:  # what the window begins with after this policy's own reset
            past = latest.new_tensor([state.number("first")])
        state["first"] = None
        measured = {"distance": distance}
        if past is not None and len(past) >= long:
            recent, usual = past[-short:].mean(), past[-long:].mean()
            measured |= {"recent_distance": float(recent), "usual_distance": float(usual)}
            if bool(recent > self.threshold * usual):
                state["first"] = distance
                return Verdict(fraction=1.0, cut=0, measurements=measured)
        state["past"] = latest if past is None else torch.cat([past, latest])[-long:]
        return Verdict(measurements=measured)
