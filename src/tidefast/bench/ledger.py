"""What a run writes down: one row per batch, in Parquet.

While it runs, each snapshot is preceded by a segment with the rows since the last one; when it ends, the segments
become `steps.parquet`, `spans.parquet` and `timing.parquet`, and only the last depends on the machine. What a policy
measures beyond the standard measurements has a column each, which says itself what it is.

Nothing is read that is not what was written: a segment has its digest in its name, a finished run those of its files in
`digests.json`, and the rows of segments must follow one another from the first batch on.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
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
from tidefast.errors import DamagedRunError, FolderError

SEGMENTS, STEPS, SPANS, TIMING = "segments", "steps.parquet", "spans.parquet", "timing.parquet"
DIGESTS = "digests.json"
"""Of the files of a finished run, by their names; runs of before they were kept do not have it."""

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
        ("likelihood_loss", pa.float64()),
        ("brier_score", pa.float64()),
        ("bin_images", _COUNTS),
        ("bin_correct", _COUNTS),
        ("bin_confidence", pa.list_(pa.float64())),
        ("spans", pa.list_(_SPAN)),
        ("seconds", pa.float64()),
    ]
)
_STANDARD = tuple(name for name in _SCHEMA.names if name not in ("spans", "seconds"))
"""The columns that the steps of every run have."""
_NAME = re.compile(r"steps-(\d{10})(?:-([0-9a-f]{32}))?\.parquet")
"""A segment: its last batch, and the digest of its bytes, which those of before digests do not have."""
_REMEDY = "put a copy of it back, or delete the folder of the run (--fresh does) and run it again"


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
    reliability: Mapping[str, Any]
    """What is kept of the probabilities of its answers; see `calibration`. Runs of before do not have it."""
    spans: list[dict[str, Any]]
    seconds: float


class Ledger:
    """The rows of one run, below its folder."""

    FILES = (STEPS, SPANS, TIMING)

    def __init__(self, folder: Path, measures: Mapping[str, Measurement] | None = None) -> None:
        """measures: what the policy measures, for a ledger that is written to."""
        self.folder = folder
        self._rows: list[LedgerRow] = []
        self._sound: set[Path] = set()
        further = {name: what for name, what in (measures or {}).items() if name not in STANDARD}
        self._schema = pa.schema([*_SCHEMA, *(_column_of(name, what) for name, what in further.items())])

    @property
    def complete(self) -> bool:
        """Whether the final files are there."""
        return all((self.folder / name).is_file() for name in self.FILES)

    def written(self) -> int:
        """The last batch whose row is on the disk."""
        return max((end for end, _ in self._files()), default=0)

    def rows(self) -> int:
        """How many rows `steps.parquet` says that it has."""
        try:
            return int(pq.read_metadata(self.folder / STEPS).num_rows)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, ValueError, OSError) as error:
            raise DamagedRunError(f"{self.folder / STEPS} is damaged: {error}; {_REMEDY}") from error

    def rewind(self, step: int) -> None:
        """Forget the rows after `step`, the last first, so that whoever reads meanwhile finds no gap."""
        for end, path in reversed(self._segments().items()):
            if end > step:
                path.unlink()
        if self.written() != step:
            raise DamagedRunError(
                f"{self.folder / SEGMENTS} ends at batch {self.written()}, and the snapshot is of batch {step}: "
                f"a segment is missing; {_REMEDY}"
            )

    def append(self, row: LedgerRow) -> None:
        """Add a row; it is on the disk after the next `flush`."""
        self._rows.append(row)

    def flush(self) -> None:
        """Write the rows since the last flush, whole or not at all."""
        if not self._rows:
            return
        rows = [{**vars(row), **row.measurements, **row.reliability} for row in self._rows]
        self._write_segment(pa.Table.from_pylist(rows, schema=self._schema), self._rows[-1].step)
        self._rows.clear()

    def _write_segment(self, table: pa.Table, last: int) -> None:
        data = _bytes(table)
        (self.folder / SEGMENTS).mkdir(exist_ok=True)
        write_atomically(self.folder / SEGMENTS / f"steps-{last:010d}-{digest(data)}.parquet", data)

    def finish(self, total: int | None = None) -> dict[str, str]:
        """Turn the segments into the final files, and give their digests; `total` is how many rows there must be."""
        table = self._table(self._schema)
        if total is not None and table.num_rows != total:
            raise DamagedRunError(
                f"{self.folder / SEGMENTS} holds {table.num_rows} of {total} batches: a segment is missing; {_REMEDY}"
            )
        (self.folder / DIGESTS).unlink(missing_ok=True)  # of an earlier end that was interrupted
        files = {
            TIMING: _bytes(table.select(["step", "seconds"])),
            SPANS: _bytes(_flattened(table)),
            STEPS: _bytes(table.drop_columns(["spans", "seconds"])),
        }
        for name, data in files.items():
            write_atomically(self.folder / name, data)
        return {name: digest(data) for name, data in files.items()}

    def reopen(self) -> None:
        """Turn the final files, which stay, into a segment again, so that rows can be appended."""
        self.clear()  # what an end that was interrupted has left
        for name in self.FILES:
            self._require_sound(self.folder / name)
        steps = _read(self.folder / STEPS, [*_STANDARD, *(field.name for field in self._further())])
        nested = _nested(_read(self.folder / SPANS, self.names(SPANS)), steps.column("step"))
        table = steps.append_column("spans", nested)
        table = table.append_column("seconds", _read(self.folder / TIMING, ["seconds"]).column("seconds"))
        self._write_segment(table, table.num_rows)

    def clear(self) -> None:
        """Remove the segments, the last first."""
        for _, path in reversed(self._files()):
            path.unlink(missing_ok=True)
        for left_over in (self.folder / SEGMENTS).glob(".steps-*.tmp"):  # of a process that was killed
            left_over.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is not there, or somebody has put something else there
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
            path = self.folder / file
            self._require_sound(path)
            return _read(path, [name]).column(name)
        if file == SPANS:
            return _flattened(self._table(_part("step", "spans"))).column(name)
        return self._table(_part(name)).column(name)

    def _require_sound(self, path: Path) -> None:
        """That a final file has its digest; looked at once."""
        if path not in self._sound:
            sound_bytes(path, expected_digest(path))
            self._sound.add(path)

    def _rows_until(self, file: str, end: int) -> int:
        if file != SPANS:
            return end
        return int(np.searchsorted(self.column(SPANS, "step").to_numpy(), end, side="right"))

    def _table(self, schema: pa.Schema) -> pa.Table:
        """Some columns of the segments, which must follow one another."""
        parts, last = [], 0
        for end, path in self._segments().items():
            if path not in self._sound:
                _check_segment(path, last + 1, end)
                self._sound.add(path)
            parts.append(_read(path, schema.names).cast(schema))
            last = end
        return pa.concat_tables(parts).combine_chunks() if parts else schema.empty_table()

    def _further(self) -> list[pa.Field]:
        """The columns on the disk that not every run has; a run that goes on has those of its latest rows."""
        for path in (self.folder / STEPS, *reversed(self._segments().values())):
            try:
                if path.name == STEPS:
                    self._require_sound(path)
                return [field for field in pq.read_schema(path) if field.name not in _SCHEMA.names]
            except FileNotFoundError:  # not finished, or just finished
                continue
            except (pa.ArrowException, ValueError, OSError) as error:
                raise DamagedRunError(f"{path} is damaged: {error}; {_REMEDY}") from error
        return []

    def _segments(self) -> dict[int, Path]:
        """By the last batch of each."""
        paths: dict[int, Path] = {}
        for end, path in self._files():
            if end in paths:
                raise DamagedRunError(f"{path} and {paths[end].name} are of the same batches: delete the wrong one")
            paths[end] = path
        return paths

    def _files(self) -> list[tuple[int, Path]]:
        """The last batch and the file of every segment, in order."""
        if not (self.folder / SEGMENTS).is_dir():
            return []
        if (self.folder / SEGMENTS).is_symlink():  # what lies there may be another's, and would be deleted
            raise FolderError(f"{self.folder / SEGMENTS} is a symbolic link: remove it, or choose another folder")
        entries = ((_NAME.fullmatch(path.name), path) for path in (self.folder / SEGMENTS).iterdir())
        return sorted((int(name[1]), path) for name, path in entries if name)


def digest(data: bytes) -> str:
    """Of the bytes of a file."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def expected_digest(path: Path) -> str | None:
    """Of a file of a finished run; None when it is from before digests were kept, or is just being finished."""
    kept = path.with_name(DIGESTS)
    try:
        return str(json.loads(kept.read_bytes())[path.name])
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedRunError(f"{kept} is damaged: {error!r}; {_REMEDY}") from error


def sound_bytes(path: Path, expected: str | None) -> bytes:
    """The content of a file, which has the digest that is expected of it; None: one of before digests were kept."""
    data = path.read_bytes()
    if expected is not None and digest(data) != expected:
        raise DamagedRunError(f"{path} is damaged: its content does not match its digest; {_REMEDY}")
    return data


def _check_segment(path: Path, first: int, last: int) -> None:
    """That a segment is what was written, and holds the batches from `first` to `last`."""
    name = _NAME.fullmatch(path.name)
    assert name is not None
    data = sound_bytes(path, name[2])
    try:
        steps = pq.read_table(io.BytesIO(data), columns=["step"]).column("step").to_pylist()
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise DamagedRunError(f"{path} is damaged: {error}; {_REMEDY}") from error
    if steps != list(range(first, last + 1)):
        held = f"batches {steps[0]} to {steps[-1]}" if steps else "no batch"
        raise DamagedRunError(
            f"{path} holds {held} ({len(steps)} rows), expected {first} to {last}: a segment is missing or in the "
            f"wrong place; {_REMEDY}"
        )


def _read(path: Path, names: list[str]) -> pa.Table:
    """Some columns of a file; those that it is too old to have are empty."""
    try:
        there = pq.read_schema(path).names
        table = pq.read_table(path, columns=[name for name in names if name in there])
    except FileNotFoundError:
        raise
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:  # of before digests
        raise DamagedRunError(f"{path} is damaged: {error}; {_REMEDY}") from error
    for at, name in enumerate(names):
        if name not in there:
            table = table.add_column(at, name, pa.nulls(table.num_rows, _part(name).field(name).type))
    return table


def _part(*names: str) -> pa.Schema:
    """Of columns; one that not every run has is a measurement."""
    return pa.schema([_SCHEMA.field(name) if name in _SCHEMA.names else (name, pa.float64()) for name in names])


def _column_of(name: str, what: Measurement) -> pa.Field:
    metadata = {key: value for key, value in vars(what).items() if value}
    return pa.field(name, pa.float64(), metadata=metadata)


def _measurement_in(field: pa.Field) -> Measurement:
    metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    return Measurement(metadata.get("description", ""), metadata.get("unit", ""), metadata.get("beside"))


def _flattened(table: pa.Table) -> pa.Table:
    """One row per span."""
    spans = table.column("spans").combine_chunks()
    values = spans.flatten()
    owner = table.column("step").combine_chunks().take(spans.value_parent_indices())
    fields = {field.name: values.field(field.name) for field in _SPAN}
    return pa.table({"step": owner, **fields})


def _nested(spans: pa.Table, steps: pa.ChunkedArray) -> pa.ListArray:
    """The spans of each step, from one row per span: what `_flattened` took apart."""
    owners = spans.column("step").to_numpy()
    starts = np.searchsorted(owners, steps.to_numpy(), side="left")
    offsets = pa.array([*starts, len(owners)], pa.int32())
    fields = [spans.column(field.name).cast(field.type).combine_chunks() for field in _SPAN]
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(fields, fields=list(_SPAN)))


def _bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()
