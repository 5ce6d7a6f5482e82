"""What a run writes down: one row per batch, in Parquet.

While it runs, each snapshot is preceded by a segment with the rows since the last one; when it ends, the segments
become `steps.parquet`, `spans.parquet` and `timing.parquet`, and only the last depends on the machine.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidefast.core.files import write_atomically

SEGMENTS, STEPS, SPANS, TIMING = "segments", "steps.parquet", "spans.parquet", "timing.parquet"

VARIANTS = ("concentration_mean_of_softmax", "concentration_without_1", "concentration_without_10_percent")
"""Other measures of the same predictions; runs of before they were measured do not have them."""
_MEASURES = ("loss", "concentration", *VARIANTS, "threshold", "inconsistency", "momentum", "penalty")
_COUNTS = pa.list_(pa.int32())
_SPAN = pa.struct([("domain", pa.string()), ("visit", pa.int32()), ("images", pa.int32()), ("correct", pa.int32())])
_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("images", pa.int32()),
        ("correct", pa.int32()),
        ("selected", pa.int32()),
        *((name, pa.float64()) for name in _MEASURES),
        ("reset_fraction", pa.float64()),
        ("nonfinite", pa.int32()),
        ("skipped", pa.string()),
        ("predicted", _COUNTS),
        ("labels", _COUNTS),
        ("spans", pa.list_(_SPAN)),
        ("seconds", pa.float64()),
    ]
)
_NAME = re.compile(r"steps-(\d{10})\.parquet")


@dataclass(frozen=True)
class LedgerRow:
    """One batch."""

    step: int
    images: int
    correct: int
    selected: int
    loss: float | None
    concentration: float | None
    concentration_mean_of_softmax: float | None
    concentration_without_1: float | None
    """Without the logit of the largest magnitude."""
    concentration_without_10_percent: float | None
    threshold: float | None
    inconsistency: float | None
    momentum: float | None
    penalty: float | None
    reset_fraction: float
    nonfinite: int
    skipped: str | None
    predicted: list[int]
    """How often each class was predicted."""
    labels: list[int]
    """How often each class was there."""
    spans: list[dict[str, Any]]
    seconds: float


class Ledger:
    """The rows of one run, below its folder."""

    FILES = (STEPS, SPANS, TIMING)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: list[LedgerRow] = []

    @property
    def complete(self) -> bool:
        """Whether the final files are there."""
        return all((self.folder / name).is_file() for name in self.FILES)

    def written(self) -> int:
        """The last batch whose row is on the disk."""
        return max(self._segments(), default=0)

    def rewind(self, step: int) -> bool:
        """Forget the rows after `step`; False, and nothing is left, when the rows do not reach it."""
        for end, path in self._segments().items():
            if end > step:
                path.unlink()
        if self.written() == step:
            return True
        for path in self._segments().values():
            path.unlink()
        return step == 0

    def append(self, row: LedgerRow) -> None:
        """Add a row; it is on the disk after the next `flush`."""
        self._rows.append(row)

    def flush(self) -> None:
        """Write the rows since the last flush, whole or not at all."""
        if not self._rows:
            return
        (self.folder / SEGMENTS).mkdir(exist_ok=True)
        table = pa.Table.from_pylist([vars(row) for row in self._rows], schema=_SCHEMA)
        write_atomically(self.folder / SEGMENTS / f"steps-{self._rows[-1].step:010d}.parquet", _bytes(table))
        self._rows.clear()

    def finish(self) -> None:
        """Turn the segments into the final files."""
        table = self._table(_SCHEMA.names)
        write_atomically(self.folder / TIMING, _bytes(table.select(["step", "seconds"])))
        write_atomically(self.folder / SPANS, _bytes(_flattened(table)))
        write_atomically(self.folder / STEPS, _bytes(table.drop_columns(["spans", "seconds"])))

    def clear(self) -> None:
        """Remove the segments."""
        for path in self._segments().values():
            path.unlink()
        if (self.folder / SEGMENTS).is_dir():
            (self.folder / SEGMENTS).rmdir()

    def names(self, file: str) -> list[str]:
        """The columns of one of the final files."""
        if file == SPANS:
            return ["step", *(field.name for field in _SPAN)]
        return ["step", "seconds"] if file == TIMING else [n for n in _SCHEMA.names if n not in ("spans", "seconds")]

    def column(self, file: str, name: str, end: int | None = None) -> pa.ChunkedArray:
        """A column of a final file, or of what will become it, up to batch `end`; nothing else is read."""
        try:
            whole = self._column(file, name)
        except FileNotFoundError:  # the run has just been finished: its segments have become the final files
            whole = self._column(file, name)
        if end is None:
            return whole
        return whole.slice(0, self._rows_until(file, end))

    def _column(self, file: str, name: str) -> pa.ChunkedArray:
        if self.complete:
            return _read(self.folder / file, [name]).column(name)
        if file == SPANS:
            return _flattened(self._table(["step", "spans"])).column(name)
        return self._table([name]).column(name)

    def _rows_until(self, file: str, end: int) -> int:
        if file != SPANS:
            return end
        return int(np.searchsorted(self.column(SPANS, "step").to_numpy(), end, side="right"))

    def _table(self, names: list[str]) -> pa.Table:
        """Some columns of the segments."""
        schema = pa.schema([_SCHEMA.field(name) for name in names])
        parts = [_read(path, names).cast(schema) for path in self._segments().values()]
        return pa.concat_tables(parts).combine_chunks() if parts else schema.empty_table()

    def _segments(self) -> dict[int, Path]:
        found = {}
        if (self.folder / SEGMENTS).is_dir():
            for path in (self.folder / SEGMENTS).iterdir():
                if name := _NAME.fullmatch(path.name):
                    found[int(name[1])] = path
        return dict(sorted(found.items()))


def _read(path: Path, names: list[str]) -> pa.Table:
    """Some columns of a file; those that it is too old to have are empty."""
    there = pq.read_schema(path).names
    table = pq.read_table(path, columns=[name for name in names if name in there])
    for at, name in enumerate(names):
        if name not in there:
            table = table.add_column(at, name, pa.nulls(table.num_rows, _SCHEMA.field(name).type))
    return table


def _flattened(table: pa.Table) -> pa.Table:
    """One row per span."""
    spans = table.column("spans").combine_chunks()
    values = spans.flatten()
    owner = table.column("step").combine_chunks().take(spans.value_parent_indices())
    fields = {field.name: values.field(field.name) for field in _SPAN}
    return pa.table({"step": owner, **fields})


def _bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()
