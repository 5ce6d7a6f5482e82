"""What one adapting call reports, and callbacks that keep the reports."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from tidefast.core.measurement import STANDARD

if TYPE_CHECKING:
    from tidefast.adapter import Adapter


@dataclass(frozen=True)
class StepRecord:
    """One adapting call. A field is None where the method or the reset policy does not measure it.

    >>> record = StepRecord(step=1, loss=0.5, selected=16, measurements={"threshold": -2.0, "surprise": 0.25})
    >>> record.threshold, record.concentration, record.measurements["surprise"]
    (-2.0, None, 0.25)
    """

    step: int
    loss: float | None = None
    """The method's own loss, before any penalty of the reset policy."""
    selected: int = 0
    """Samples that contributed to the loss."""
    concentration: float | None = field(init=False)
    """C_t: negative entropy of the softmax of the mean logits."""
    threshold: float | None = field(init=False)
    """C-bar of t-1, which the concentration was compared with."""
    inconsistency: float | None = field(init=False)
    """phi_t: share of samples on which source and adapted model disagree."""
    momentum: float | None = field(init=False)
    """mu_C of this step."""
    penalty: float | None = field(init=False)
    """lambda_F used in this step."""
    reset_fraction: float = 0.0
    """Share of layers that was reset after this step."""
    seconds: float = 0.0
    nonfinite: int = 0
    """Non-finite batches in a row, this one included; 0 when this one was sound."""
    skipped: str | None = None
    """Why this call changed no parameter, when something prevented it."""
    measurements: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Everything that the reset policies measured, by name; `concentration` to `penalty` are read from here."""

    def __post_init__(self) -> None:
        for name in STANDARD:
            object.__setattr__(self, name, self.measurements.get(name))

    @property
    def adapted(self) -> bool:
        """Whether images of this call, or gathered before it, contributed to a change of parameters or state."""
        return self.skipped is None and self.selected > 0

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain numbers, for a log line or a table."""
        return asdict(self)


Callback = Callable[["Adapter", StepRecord], None]
"""Called after every adapting call, when the adapter has finished its step."""


class History:
    """Callback that keeps the last `limit` records (all of them when None).

    >>> history = History(limit=2)
    >>> for step in (1, 2, 3):
    ...     history(None, StepRecord(step=step))
    >>> [record.step for record in history]
    [2, 3]
    """

    def __init__(self, limit: int | None = 10_000) -> None:
        self.records: deque[StepRecord] = deque(maxlen=limit)

    def __call__(self, adapter: Adapter | None, record: StepRecord) -> None:
        self.records.append(record)

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


class JsonLines:
    """Callback that appends each record to a file, one JSON object a line, flushed at once."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open for the callback's lifetime)

    def __call__(self, adapter: Adapter | None, record: StepRecord) -> None:
        self._file.write(json.dumps(record.as_dict()) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
