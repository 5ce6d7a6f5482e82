"""Runs for a study: found where they are, run where they are not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from tidefast.bench import Progress, sweep
from tidefast.bench.experiment import Experiment
from tidefast.bench.results import RESULT, Run, find, load
from tidefast.errors import TidefastError


class StudyError(TidefastError):
    """A study could not get the runs that it needs."""


def missing(wanted: Iterable[Experiment], folder: Path) -> list[Experiment]:
    """The experiments that have no finished run below the folder."""
    return [one for one in _distinct(wanted) if not (folder / one.key / RESULT).is_file()]


def obtain(
    wanted: Iterable[Experiment],
    folder: Path,
    *,
    jobs: int | None = None,
    threads: int | None = None,
    watch: Callable[[list[Progress]], None] | None = None,
) -> list[Run]:
    """The finished runs of the experiments, in their order; those that are not there are run, below the folder."""
    chosen = _distinct(wanted)
    if missing(chosen, folder):
        failed = [one for one in sweep(chosen, folder, jobs=jobs, threads=threads, watch=watch) if one.error]
        if failed:
            raise StudyError(
                f"{len(failed)} of {len(chosen)} runs failed, the first {failed[0].experiment.key}: {failed[0].error}"
            )
    return [load(folder / one.key) for one in chosen]


def there(wanted: Iterable[Experiment], folder: Path) -> dict[str, Run]:
    """The finished runs of the experiments below the folder, by their keys."""
    return {one.key: load(folder / one.key) for one in _distinct(wanted) if (folder / one.key / RESULT).is_file()}


def finished(folders: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Every finished run in some folders and below them."""
    return [run for folder in folders for run in find(folder) if run.complete]


def _distinct(wanted: Iterable[Experiment]) -> list[Experiment]:
    return list({one.key: one for one in wanted}.values())
