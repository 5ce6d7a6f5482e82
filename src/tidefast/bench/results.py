"""Runs on disk, read back."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidefast.bench import metrics
from tidefast.bench.calibration import Reliability
from tidefast.bench.experiment import Experiment
from tidefast.bench.ledger import SPANS, STEPS, TIMING, Ledger, expected_digest, sound_bytes
from tidefast.core.measurement import Measurement
from tidefast.errors import FORMER_NAME, DamagedRunError, FolderError, of_former_name

EXPERIMENT, ENVIRONMENT, RESULT, SNAPSHOT, ERROR = (
    "experiment.json",
    "environment.json",
    "result.json",
    "snapshot.safetensors",
    "error.txt",
)
Array = npt.NDArray[Any]


class Columns(Mapping[str, Array]):
    """The columns of a table as arrays, read when asked for: numbers that were not measured are nan.

    They end at batch `end`, however far the run has come since.
    """

    def __init__(self, ledger: Ledger, file: str, end: int | None) -> None:
        self._ledger, self._file, self._end = ledger, file, end
        self._read: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._read:
            if name not in self:
                raise KeyError(f"no column {name!r}; there are {', '.join(self)}")
            self._read[name] = _array(self._ledger.column(self._file, name, self._end))
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._ledger.has(self._file, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ledger.names(self._file))

    def __len__(self) -> int:
        return len(self._ledger.names(self._file))


@dataclass(frozen=True, eq=False)
class Run:
    """One run, finished or not."""

    folder: Path
    experiment: Experiment
    total: int
    """Batches of the whole stream; 0 while that is not known."""
    environment: dict[str, Any]
    complete: bool
    end: int | None = None
    """The last batch that was on disk when a run that is not finished was loaded."""

    @functools.cached_property
    def _ledger(self) -> Ledger:
        return Ledger(self.folder)

    def _columns(self, file: str) -> Columns:
        return Columns(self._ledger, file, self.end)

    @functools.cached_property
    def steps(self) -> Columns:
        """One row per batch, in order; `predicted` and `labels` are counts [batches, classes]."""
        return self._columns(STEPS)

    @functools.cached_property
    def spans(self) -> Columns:
        """One row per batch and stretch of images in one domain."""
        return self._columns(SPANS)

    @property
    def measures(self) -> dict[str, Measurement]:
        """What its policy measured, as far as the standard measurements do not say it: further columns of `steps`."""
        return self._ledger.measures()

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """Wall time of each adapting call."""
        return self._columns(TIMING)["seconds"]

    @property
    def batches(self) -> int:
        """How many batches it has seen."""
        return len(self.steps["step"])

    @property
    def accuracy(self) -> float:
        """Share of correct predictions so far; nan when there are none."""
        return metrics.accuracy(self.steps["correct"], self.steps["images"])

    @property
    def batch_accuracy(self) -> metrics.Floats:
        """Share of correct predictions of each batch."""
        return metrics.batch_accuracy(self.steps["correct"], self.steps["images"])

    @property
    def answers(self) -> metrics.Answers:
        """How many images each batch has, and how many of them were answered right."""
        return self.steps["images"], self.steps["correct"]

    def smooth_accuracy(self, window: int) -> metrics.Floats:
        """At each batch, the accuracy over the `window` batches around it; fewer at the ends."""
        return metrics.smooth_accuracy(self.steps["correct"], self.steps["images"], window)

    @property
    def reliability(self) -> Reliability | None:
        """What its answers were worth as probabilities; None of a run of before that was kept."""
        whole = self.reliability_in(slice(None))
        return whole if whole.total else None

    def reliability_in(self, batches: slice) -> Reliability:
        """The same of some of its batches, counted from 0; of no image, where it was not kept."""
        images, correct, confidence = (
            self.steps[f"bin_{name}"][batches].sum(0) for name in ("images", "correct", "confidence")
        )
        loss, brier = (float(np.nansum(self.steps[name][batches])) for name in ("likelihood_loss", "brier_score"))
        return Reliability(images, correct, confidence, loss, brier)

    @property
    def reset_fraction(self) -> metrics.Floats:
        """For each batch the share of layers that were reset after it; 0 when none."""
        shares: metrics.Floats = np.nan_to_num(self.steps["reset_fraction"])
        return shares

    @property
    def resets(self) -> metrics.Counts:
        """The batches after which it was reset, counted from 0."""
        return metrics.reset_batches(self.steps["reset_fraction"])

    @property
    def result(self) -> dict[str, Any] | None:
        """The summary of a finished run."""
        return read_json(self.folder / RESULT, expected_digest(self.folder / RESULT))


def load(folder: str | os.PathLike[str]) -> Run:
    """The run in a folder."""
    folder = Path(folder)
    plain = read_json(folder / EXPERIMENT)
    if plain is None:
        raise FolderError(f"{folder} holds no run: there is no {EXPERIMENT}")
    environment = read_environment(folder) or {}
    ledger = Ledger(folder)
    end = ledger.written()  # before it is asked whether all is there: a run may be finished at any moment
    complete = (folder / RESULT).is_file()
    missing = [name for name in Ledger.FILES if not (folder / name).is_file()]
    if complete and missing and (folder / RESULT).is_file():  # still: --fresh deletes the result first
        raise DamagedRunError(
            f"{folder} is of a finished run and lacks {', '.join(missing)}: delete it and run it again"
        )
    total = int(environment.get("batches", 0))
    if complete and total and (rows := ledger.rows()) != total:
        raise DamagedRunError(f"{folder / STEPS} holds {rows} of {total} batches: delete {folder} and run it again")
    return Run(
        folder=folder,
        experiment=Experiment.of(plain),
        total=total,
        environment=environment,
        complete=complete,
        end=end if missing else None,
    )


def read_environment(folder: Path) -> dict[str, Any] | None:
    """What a run ran on; None when that is not noted yet."""
    environment = read_json(folder / ENVIRONMENT, expected_digest(folder / ENVIRONMENT))
    if environment is not None and FORMER_NAME in environment:
        raise FolderError(of_former_name(folder))
    return environment


def find(root: str | os.PathLike[str]) -> list[Run]:
    """Every run in a folder and below it, in the order of their names."""
    root = Path(root)
    if not root.is_dir():
        raise FolderError(f"{root} is not a folder")
    return [load(path.parent) for path in sorted(root.rglob(EXPERIMENT))]


def dominant_domains(run: Run) -> list[str]:
    """For each batch the domain of most of its images."""
    spans = run.spans
    rows = zip(spans["step"].tolist(), spans["domain"], spans["images"].tolist(), strict=True)
    return [str(max(group, key=lambda row: row[2])[1]) for _, group in itertools.groupby(rows, key=lambda row: row[0])]


def read_json(path: Path, digest: str | None = None) -> dict[str, Any] | None:
    """An object from a file, which must have that digest; None when there is no file."""
    try:
        content = json.loads(sound_bytes(path, digest))
    except FileNotFoundError:
        return None
    except ValueError as error:
        if isinstance(error, FolderError):
            raise
        raise DamagedRunError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise DamagedRunError(f"{path} is damaged: it holds no object")
    return content


def _array(column: pa.ChunkedArray) -> Array:
    values = column.combine_chunks()
    if pa.types.is_list(values.type):
        known, flat = values.is_valid().to_numpy(zero_copy_only=False), values.flatten().to_numpy()
        rows = np.zeros((len(values), len(flat) // max(1, known.sum())), flat.dtype)
        rows[known] = flat.reshape(known.sum(), rows.shape[1])  # what older batches do not have is 0
        return rows
    if pa.types.is_string(values.type):
        return np.array(values.to_pylist(), dtype=object)
    return np.asarray(values.to_numpy(zero_copy_only=False))
