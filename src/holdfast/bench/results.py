"""Runs on disk, read back."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.bench.experiment import Experiment
from holdfast.bench.ledger import Ledger
from holdfast.errors import FolderError

EXPERIMENT, ENVIRONMENT, RESULT, SNAPSHOT, ERROR = (
    "experiment.json",
    "environment.json",
    "result.json",
    "snapshot.safetensors",
    "error.txt",
)
Array = npt.NDArray[Any]


class Columns(Mapping[str, Array]):
    """The columns of a table as arrays, made when asked for: numbers that were not measured are nan."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._made:
            if name not in self._table.column_names:
                raise KeyError(f"no column {name!r}; there are {', '.join(self)}")
            self._made[name] = _array(self._table.column(name))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.column_names)

    def __len__(self) -> int:
        return len(self._table.column_names)


@dataclass(frozen=True, eq=False)
class Run:
    """One run, finished or not."""

    folder: Path
    experiment: Experiment
    total: int
    """Batches of the whole stream; 0 while that is not known."""
    environment: dict[str, Any]
    complete: bool

    @functools.cached_property
    def _tables(self) -> tuple[pa.Table, pa.Table, pa.Table]:
        return Ledger(self.folder).columns()

    @functools.cached_property
    def steps(self) -> Columns:
        """One row per batch, in order; `predicted` and `labels` are counts [batches, classes]."""
        return Columns(self._tables[0])

    @functools.cached_property
    def spans(self) -> Columns:
        """One row per batch and stretch of images in one domain."""
        return Columns(self._tables[1])

    @functools.cached_property
    def seconds(self) -> npt.NDArray[np.float64]:
        """Wall time of each adapting call."""
        return Columns(self._tables[2])["seconds"]

    @property
    def batches(self) -> int:
        """How many batches it has seen."""
        return int(self._tables[0].num_rows)

    @property
    def accuracy(self) -> float:
        """Share of correct predictions so far; nan when there are none."""
        images = int(self.steps["images"].sum())
        return float(self.steps["correct"].sum() / images) if images else float("nan")

    @property
    def result(self) -> dict[str, Any] | None:
        """The summary of a finished run."""
        return read_json(self.folder / RESULT)


def load(folder: str | os.PathLike[str]) -> Run:
    """The run in a folder."""
    folder = Path(folder)
    plain = read_json(folder / EXPERIMENT)
    if plain is None:
        raise FolderError(f"{folder} holds no run: there is no {EXPERIMENT}")
    environment = read_json(folder / ENVIRONMENT) or {}
    return Run(
        folder=folder,
        experiment=Experiment.of(plain),
        total=int(environment.get("batches", 0)),
        environment=environment,
        complete=(folder / RESULT).is_file(),
    )


def find(root: str | os.PathLike[str]) -> list[Run]:
    """Every run in a folder and below it, in the order of their names."""
    root = Path(root)
    if not root.is_dir():
        raise FolderError(f"{root} is not a folder")
    return [load(path.parent) for path in sorted(root.rglob(EXPERIMENT))]


def read_json(path: Path) -> dict[str, Any] | None:
    """An object from a file; None when there is no file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise FolderError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise FolderError(f"{path} is damaged: it holds no object")
    return content


def _array(column: pa.ChunkedArray) -> Array:
    values = column.combine_chunks()
    if pa.types.is_list(values.type):
        flat = values.flatten().to_numpy()
        return np.asarray(flat.reshape(len(values), -1 if len(values) else 0))
    if pa.types.is_string(values.type):
        return np.array(values.to_pylist(), dtype=object)
    return np.asarray(values.to_numpy(zero_copy_only=False))
