"""How a schedule is cut into batches."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from tidefast.core.validation import require_choice, require_count
from tidefast.streams.schedule import Schedule

Ragged = Literal["keep", "drop"]
RAGGED: tuple[Ragged, ...] = get_args(Ragged)


class Batching:
    """Batches of a fixed size, over the whole schedule or anew in each stretch.

    With `cross` a batch may cross from one stretch to the next, and only the last of the stream can be short;
    without, each stretch ends with a short batch if need be. `ragged` keeps or drops the short ones. `steps` ends the
    stream early.

    >>> from tidefast.streams.domain import Domain
    >>> from tidefast.streams.schedule import hold
    >>> schedule = hold(Domain(), 100) * 2
    >>> through = Batching(schedule, 64)
    >>> [through.bounds(k) for k in range(len(through))]
    [(0, 64), (64, 128), (128, 192), (192, 200)]
    >>> apart = Batching(schedule, 64, cross=False)
    >>> [apart.bounds(k) for k in range(len(apart))]
    [(0, 64), (64, 100), (100, 164), (164, 200)]
    """

    def __init__(
        self, schedule: Schedule, size: int, *, cross: bool = True, ragged: Ragged = "keep", steps: int | None = None
    ) -> None:
        require_count("batch", size)
        require_choice("ragged", ragged, RAGGED)
        self.size = size
        ends = schedule.ends[-1:] if cross else schedule.ends
        self._starts = np.concatenate([[0], ends[:-1]])
        self._ends = ends
        lengths = self._ends - self._starts
        whole = lengths // size
        self._batches = np.cumsum(whole if ragged == "drop" else whole + (lengths % size > 0))
        available = int(self._batches[-1])
        if available == 0:
            raise ValueError(
                f"no batch of {size} fits into {'the stream' if cross else 'any stretch'} of at most "
                f"{int(lengths.max())} images: use a smaller batch, a longer schedule, or ragged='keep'"
            )
        if steps is not None:
            require_count("steps", steps)
            if steps > available:
                raise ValueError(
                    f"steps={steps} is more than the {available} batches of {size} in the schedule of "
                    f"{schedule.images} images: give fewer steps or a longer schedule (Schedule.fill repeats one)"
                )
        self._steps = available if steps is None else steps

    def __len__(self) -> int:
        return self._steps

    def bounds(self, k: int) -> tuple[int, int]:
        """The positions of the first image of batch `k` and of the one after its last."""
        part = int(np.searchsorted(self._batches, k, side="right"))
        before = int(self._batches[part - 1]) if part else 0
        first = int(self._starts[part]) + (k - before) * self.size
        return first, min(first + self.size, int(self._ends[part]))
