"""What a caller may ask of any stream."""

from __future__ import annotations

from dataclasses import dataclass

from tidefast.core.constraints import Constrained, Count, CountOrZero
from tidefast.corruptions.severity import Scale
from tidefast.streams.batching import Ragged
from tidefast.streams.order import Order


@dataclass(frozen=True)
class StreamSettings(Constrained):
    """The arguments of `make` that every stream has; None leaves the choice to the stream."""

    batch: Count
    seed: CountOrZero = 0
    steps: Count | None = None
    order: Order | None = None
    ragged: Ragged = "keep"
    scale: Scale | None = None
