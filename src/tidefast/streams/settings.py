"""What a caller may ask of any stream."""

from __future__ import annotations

from dataclasses import dataclass

from tidefast.core.validation import require_count
from tidefast.corruptions.severity import Scale
from tidefast.streams.batching import Ragged
from tidefast.streams.order import Order


@dataclass(frozen=True)
class StreamSettings:
    """The arguments of `make` that every stream has; None leaves the choice to the stream."""

    batch: int
    seed: int = 0
    steps: int | None = None
    order: Order | None = None
    ragged: Ragged = "keep"
    scale: Scale | None = None

    def __post_init__(self) -> None:
        require_count("batch", self.batch)
        require_count("seed", self.seed, low=0)
        if self.steps is not None:
            require_count("steps", self.steps)
