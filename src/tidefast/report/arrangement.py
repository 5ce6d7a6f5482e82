"""Runs boiled down to what tables need, and arranged: contestants in rows, streams in columns, repetitions in cells."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tidefast import bench
from tidefast.bench import Experiment, metrics, protocols
from tidefast.core.specification import Specification
from tidefast.errors import FolderError

_SETTINGS = ("model", "optimizer", "batch", "window", "gather", "source", "source_images")
_FIRST = {"source": 0, "batchnorm": 1}
_RESETS = {"never": 0, "periodic": 1, "asr": 3}
_PAUSES = (0.05, 0.1, 0.2)

T = TypeVar("T")

ContestantKey = tuple[str, ...]
"""What tells rows apart: method, reset policy, and the settings they ran with."""
ColumnKey = tuple[str, int | None]
"""What tells columns apart: the stream without what is pooled, and how many batches were asked for."""
Repetition = tuple[str, ...]
"""What tells the runs of one cell apart: the seed, and the values of pooled options."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One run without its bulk."""

    folder: Path
    experiment: Experiment
    complete: bool
    failed: bool
    total: int
    summary: dict[str, Any]
    answers: metrics.Answers = metrics.NO_ANSWERS

    @property
    def batches(self) -> int:
        """How many batches it has seen."""
        return int(self.summary["batches"])

    def accuracy(self, kind: str = "auto") -> float:
        """In percent, by image, domain or visit; `auto`: as is usual for the stream."""
        return protocols.accuracy(self.experiment, self.summary, kind)


def read(folders: Sequence[str | Path]) -> list[Entry]:
    """Every run below the folders, finished or not; of a run that is there twice, the one that got further."""
    largest: dict[str, Entry] = {}
    for folder in folders:
        for run in bench.find(folder):
            entry = patiently(run.folder, _entry)
            key = json.dumps(entry.experiment.as_plain(), sort_keys=True)
            if key not in largest or entry.batches > largest[key].batches:
                largest[key] = entry
    if not largest:
        raise FolderError(
            f"there are no runs below {', '.join(map(str, folders))}; `tidefast run` and `tidefast sweep` make them"
        )
    return list(largest.values())


def patiently(folder: Path, read: Callable[[bench.Run], T]) -> T:
    """What `read` finds in a run, tried again when files change under its hands: a sweep may be going on."""
    for pause in _PAUSES:
        with contextlib.suppress(FileNotFoundError):
            return read(bench.load(folder))
        time.sleep(pause)
    try:
        return read(bench.load(folder))
    except FileNotFoundError as error:
        raise FolderError(f"{folder} is damaged: {error}") from error


def _entry(run: bench.Run) -> Entry:
    summary = metrics.summary(run, predictions=False)
    failed = not run.complete and (run.folder / "error.txt").is_file()
    return Entry(run.folder, run.experiment, run.complete, failed, run.total, summary, run.answers)


class Arrangement:
    """Entries as a table: which row and column each belongs to."""

    def __init__(self, entries: Sequence[Entry], pool: Sequence[str] = ()) -> None:
        self.entries = list(entries)
        self._pool = tuple(pool)
        self._varying = [
            name
            for name in _SETTINGS
            if len({_setting(e.experiment, name) for e in entries if not _indifferent(e.experiment, name)}) > 1
        ]
        self._cells: dict[tuple[ContestantKey, ColumnKey], dict[Repetition, Entry]] = {}
        self._experiments: dict[ContestantKey, Experiment] = {}
        self._streams: dict[ColumnKey, Specification] = {}
        for entry in entries:
            row, column = self._contestant(entry.experiment), self._column(entry.experiment)
            cell, repetition = self._cells.setdefault((row, column), {}), self._repetition(entry.experiment)
            if repetition not in cell or cell[repetition].batches < entry.batches:
                cell[repetition] = entry
            self._experiments.setdefault(row, entry.experiment)
            self._streams.setdefault(column, self._stream(entry.experiment.stream))
        self.rows = sorted(self._experiments, key=lambda row: self._rank(self._experiments[row]))
        self.columns = sorted(self._streams, key=lambda column: (_level(self._streams[column]), column[1] or 0))

    def at(self, row: ContestantKey, column: ColumnKey) -> dict[Repetition, Entry]:
        """The runs of a cell."""
        return self._cells.get((row, column), {})

    def experiment(self, row: ContestantKey) -> Experiment:
        """One of the experiments of a row."""
        return self._experiments[row]

    def stream(self, column: ColumnKey) -> Specification:
        """The stream of a column."""
        return self._streams[column]

    def label(self, row: ContestantKey) -> str:
        """The contestant for people; settings are named where the set has several."""
        experiment = self._experiments[row]
        extra = [
            f"{name.replace('_', ' ')} {_setting(experiment, name)}"
            for name in self._varying
            if not _indifferent(experiment, name)
        ]
        if any(
            other.label == experiment.label and not _alike(other, experiment) for other in self._experiments.values()
        ):
            extra = [experiment.method.spelled, experiment.reset.spelled, *extra]  # two of the same title
        return ", ".join([experiment.label, *extra])

    def group(self, row: ContestantKey) -> str:
        """The method that a row is built on, with its options."""
        return self._experiments[row].method.spelled

    def heading(self, column: ColumnKey) -> str:
        """The stream for people; its length is named where the same one was cut in several places."""
        same = [other for other in self.columns if other[0] == column[0]]
        length = "all batches" if column[1] is None else f"{column[1]:,} batches"
        stream = self._streams[column]
        namesakes = [other for other in self._streams.values() if other.label == stream.label and other != stream]
        label = f"{stream.label} ({stream.spelled})" if namesakes else stream.label
        return label + (f", {length}" if len(same) > 1 else "")

    def source(self, row: ContestantKey) -> ContestantKey | None:
        """The row of the unadapted model with the same network and batch size."""
        experiment = self._experiments[row]
        for other, candidate in self._experiments.items():
            unadapted = (candidate.method.name, candidate.reset.name) == ("source", "never")
            if unadapted and all(
                _setting(candidate, name) == _setting(experiment, name) for name in ("model", "batch")
            ):
                return other
        return None

    def base(self, row: ContestantKey) -> ContestantKey | None:
        """The row of the same method with the same settings and without resets; None for such a row itself."""
        experiment = self._experiments[row]
        if experiment.reset.name == "never":
            return None
        plain = (row[0], _text(Specification("never")), *row[2:])
        return plain if plain in self._experiments else None

    def periodic(self, row: ContestantKey) -> dict[str, ContestantKey]:
        """The rows of the same method with the same settings that are reset at an interval, by the policy's label."""
        of = self._experiments
        if of[row].reset.name in ("never", "periodic"):
            return {}
        alike = [other for other in self.rows if (other[0], *other[2:]) == (row[0], *row[2:])]
        return {of[other].label.rpartition(" + ")[2]: other for other in alike if of[other].reset.name == "periodic"}

    def pooled(self) -> dict[str, list[str]]:
        """By option of the streams that no column is named for, its values; seeds left out."""
        values: dict[str, set[str]] = {}
        for entry in self.entries:
            for name in self._pools(entry.experiment.stream):
                if name != "seed" and name in entry.experiment.stream.options:
                    values.setdefault(name, set()).add(str(entry.experiment.stream.options[name]))
        return {name: sorted(options) for name, options in values.items()}

    def _contestant(self, experiment: Experiment) -> ContestantKey:
        settings = ("" if _indifferent(experiment, name) else _setting(experiment, name) for name in _SETTINGS)
        return (_text(experiment.method), _text(experiment.reset), *settings)

    def _column(self, experiment: Experiment) -> ColumnKey:
        return _text(self._stream(experiment.stream)), experiment.steps

    def _pools(self, stream: Specification) -> tuple[str, ...]:
        return (*protocols.protocol(stream).pooled, *self._pool)

    def _stream(self, stream: Specification) -> Specification:
        pools = self._pools(stream)
        options = {name: value for name, value in stream.options.items() if name not in pools}
        return Specification(stream.name, options, stream.title)

    def _repetition(self, experiment: Experiment) -> Repetition:
        options = experiment.stream.options
        return (str(experiment.seed), *(str(options.get(name, "")) for name in self._pools(experiment.stream)))

    def _rank(self, experiment: Experiment) -> tuple[Any, ...]:
        return (
            _FIRST.get(experiment.method.name, 2),
            experiment.method.spelled,
            *(_setting(experiment, name) for name in self._varying),
            _RESETS.get(experiment.reset.name, 2),
            experiment.reset.spelled,
        )


def _alike(experiment: Experiment, other: Experiment) -> bool:
    return (experiment.method, experiment.reset) == (other.method, other.reset)


def _text(part: Specification) -> str:
    return json.dumps([part.name, part.options], sort_keys=True)


def _setting(experiment: Experiment, name: str) -> str:
    value = getattr(experiment, name)
    if value is None or (name == "batch" and protocols.usual_batch(experiment)):
        return "default"
    return value.spelled if isinstance(value, Specification) else str(value)


def _indifferent(experiment: Experiment, name: str) -> bool:
    """Whether a setting cannot matter: the unadapted model has no optimiser and no source data."""
    return experiment.method.name == "source" and name not in ("model", "batch")


def _level(stream: Specification) -> tuple[str, int, str]:
    """Streams in order, the levels of one from easy to hard."""
    levels = ("easy", "medium", "hard")
    level = stream.options.get("level", "")
    return stream.name, levels.index(level) if level in levels else len(levels), _text(stream)
