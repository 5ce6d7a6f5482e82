"""What a run writes down: one row per batch, in Parquet.

While it runs, each snapshot is preceded by a segment with the rows since the last one; when it ends, the segments
become `steps.parquet`, `spans.parquet` and `timing.parquet`, and only the last depends on the machine. What a policy
measures beyond the standard measurements has a column each, which says itself what it is.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidefast.core.files import write_atomically
from tidefast.core.measurement import STANDARD, Measurement

SEGMENTS, STEPS, SPANS, TIMING = "segments", "steps.parquet", "spans.parquet", "timing.parquet"

VARIANTS = ("concentration_mean_of_softmax", "concentration_without_1", "concentration_without_10_percent")
"""Other measures of the same predictions; runs of before they were measured do not have them."""
_MEASURED = ("concentration", *VARIANTS, *(name for name in STANDARD if name != "concentration"))
_COUNTS = pa.list_(pa.int32())
_SPAN = pa.struct([("domain", pa.string()), ("visit", pa.int32()), ("images", pa.int32()), ("correct", pa.int32())])
_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("images", pa.int32()),
        ("correct", pa.int32()),
        ("selected", pa.int32()),
        ("loss", pa.float64()),
        *((name, pa.float64()) for name in _MEASURED),
        ("reset_fraction", pa.float64()),
        ("nonfinite", pa.int32()),
        ("skipped", pa.string()),
        ("predicted", _COUNTS),
        ("labels", _COUNTS),
        ("spans", pa.list_(_SPAN)),
        ("seconds", pa.float64()),
    ]
)
_STANDARD = tuple(name for name in _SCHEMA.names if name not in ("spans", "seconds"))
"""The columns that the steps of every run have."""
_NAME = re.compile(r"steps-(\d{10})\.parquet")


@dataclass(frozen=True)
class LedgerRow:
    """One batch."""

    step: int
    images: int
    correct: int
    selected: int
    loss: float | None
    measurements: Mapping[str, float]
    """What the policy measured, and the concentration and its `VARIANTS` in any case."""
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

    def __init__(self, folder: Path, measures: Mapping[str, Measurement] | None = None) -> None:
        """measures: what the policy measures, for a ledger that is written to."""
        self.folder = folder
        self._rows: list[LedgerRow] = []
        further = {name: what for name, what in (measures or {}).items() if name not in STANDARD}
        self._schema = pa.schema([*_SCHEMA, *(_column_of(name, what) for name, what in further.items())])

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
        rows = [{**vars(row), **row.measurements} for row in self._rows]
        table = pa.Table.from_pylist(rows, schema=self._schema)
        write_atomically(self.folder / SEGMENTS / f"steps-{self._rows[-1].step:010d}.parquet", _bytes(table))
        self._rows.clear()

    def finish(self) -> None:
        """Turn the segments into the final files."""
        table = self._table(self._schema)
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
        return ["step", "seconds"] if file == TIMING else [*_STANDARD, *(field.name for field in self._further())]

    def has(self, file: str, name: str) -> bool:
        """Whether a final file has that column."""
        return (file == STEPS and name in _STANDARD) or name in self.names(file)

    def measures(self) -> dict[str, Measurement]:
        """What the run's policy measured beyond the standard measurements."""
        return {field.name: _measurement_in(field) for field in self._further()}

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
            return _flattened(self._table(_part("step", "spans"))).column(name)
        return self._table(_part(name)).column(name)

    def _rows_until(self, file: str, end: int) -> int:
        if file != SPANS:
            return end
        return int(np.searchsorted(self.column(SPANS, "step").to_numpy(), end, side="right"))

    def _table(self, schema: pa.Schema) -> pa.Table:
        """Some columns of the segments."""
        parts = [_read(path, schema.names).cast(schema) for path in self._segments().values()]
        return pa.concat_tables(parts).combine_chunks() if parts else schema.empty_table()

    def _further(self) -> list[pa.Field]:
        """The columns on the disk that not every run has; a run that goes on has those of its latest rows."""
        for path in (self.folder / STEPS, *reversed(self._segments().values())):
            try:
                return [field for field in pq.read_schema(path) if field.name not in _SCHEMA.names]
            except FileNotFoundError:  # not finished, or just finished
                continue
        return []

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
            table = table.add_column(at, name, pa.nulls(table.num_rows, _part(name).field(name).type))
    return table


def _part(*names: str) -> pa.Schema:
    """Of columns; one that not every run has is a measurement."""
    return pa.schema([_SCHEMA.field(name) if name in _SCHEMA.names else (name, pa.float64()) for name in names])


def _column_of(name: str, what: Measurement) -> pa.Field:
    said = {key: value for key, value in vars(what).items() if value}
    return pa.field(name, pa.float64(), metadata=said)


def _measurement_in(field: pa.Field) -> Measurement:
    said = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    return Measurement(said.get("description", ""), said.get("unit", ""), said.get("beside"))


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
