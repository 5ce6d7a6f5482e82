"""The latest steps of one stream, in some eighty bytes each."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from tidefast.core.measurement import STANDARD
from tidefast.core.record import StepRecord
from tidefast.serve.alarms import ImageStatistics

Packed: TypeAlias = tuple[Any, ...]

_NUMBERS = ("loss", "reset_fraction", "seconds", "latency", "mean", "deviation")
_COUNTS = ("selected", "nonfinite", "images", "run")
_FIRST = 2 + len(_NUMBERS) + len(_COUNTS) + 1
"""Values of a step before its measurements: its number and its time, then those, then why it was skipped."""
_RESET = 2 + _NUMBERS.index("reset_fraction")


class RecentSteps:
    """Steps of a stream, the oldest first. `measured` are the names of the measurements that are kept of each."""

    def __init__(self, measured: Iterable[str] = STANDARD) -> None:
        self._names = tuple(measured)
        self._layout = struct.Struct(f"<qd{len(_NUMBERS)}f{len(_COUNTS)}IH{len(self._names)}f")
        self._data = bytearray()
        self.run = 0

    def __len__(self) -> int:
        return len(self._data) // self._layout.size

    def append(self, record: StepRecord, wall: float, latency: float, images: ImageStatistics, reason: int) -> None:
        """Add a step, taken at `wall` seconds since 1970; `reason` is the number of why it was skipped."""
        numbers = (record.loss, record.reset_fraction, record.seconds, latency, images.mean, images.deviation)
        counts = (record.selected, record.nonfinite, images.count, self.run)
        measured = (record.measurements.get(name) for name in self._names)
        packed = (record.step, wall, *map(_narrow, numbers), *counts, reason, *map(_narrow, measured))
        self._data += self._layout.pack(*packed)

    def drop_first(self, count: int) -> None:
        """Forget the oldest."""
        del self._data[: count * self._layout.size]

    def go_back_to(self, step: int) -> None:
        """Before a step that is no later than the last: the stream was reset or rolled back, a new run begins."""
        if not len(self) or self._step_at(len(self) - 1) < step:
            return
        self.run += 1
        del self._data[self._index_after(step - 1) * self._layout.size :]

    def after(self, step: int) -> list[Packed]:
        """Those after a step, as `unpacked` reads them."""
        return list(self._layout.iter_unpack(self._data[self._index_after(step) * self._layout.size :]))

    def latest(self, count: int) -> list[Packed]:
        """The last ones, as `unpacked` reads them."""
        return list(self._layout.iter_unpack(self._data[-count * self._layout.size :]))

    def unpacked(self, step: Packed, reasons: Sequence[str]) -> dict[str, Any]:
        """A step as a StepRecord's fields with time, latency, images and run."""
        numbers = dict(zip(_NUMBERS, map(_widened, step[2:]), strict=False))
        measured = self._measurements(step)
        return {
            "step": step[0],
            "time": round(step[1], 3),
            **numbers,
            **{name: measured.get(name) for name in STANDARD},
            **dict(zip(_COUNTS, step[2 + len(_NUMBERS) :], strict=False)),
            "skipped": reasons[step[_FIRST - 1]] or None,
            "measurements": measured,
        }

    def trend(self, step: Packed, names: Iterable[str]) -> list[float | None]:
        """Some of the measurements of a step."""
        measured = self._measurements(step)
        return [measured.get(name) for name in names]

    @staticmethod
    def was_reset(step: Packed) -> bool:
        """Whether the policy reset anything."""
        return bool(step[_RESET] > 0)

    def _measurements(self, step: Packed) -> dict[str, float]:
        pairs = zip(self._names, map(_widened, step[_FIRST:]), strict=True)
        return {name: value for name, value in pairs if value is not None}

    def _step_at(self, index: int) -> int:
        start = index * self._layout.size
        return int.from_bytes(self._data[start : start + 8], "little", signed=True)

    def _index_after(self, step: int) -> int:
        index = len(self)
        while index and self._step_at(index - 1) > step:
            index -= 1
        return index


def _narrow(value: float | None) -> float:
    """As 32 bits hold it; nan stands for what is missing or not finite."""
    return value if value is not None and abs(value) < 3e38 else math.nan


def _widened(value: float) -> float | None:
    """What `_narrow` was given, to the six digits that 32 bits are good for."""
    return None if math.isnan(value) else float(f"{value:.6g}")
