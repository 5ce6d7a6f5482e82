"""The runs of a study: found or launched, which reset policy each has, and its accuracy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tidefast.bench import Progress, assembly, protocols, sweep
from tidefast.bench.experiment import Experiment
from tidefast.bench.results import RESULT, Run, find, load
from tidefast.errors import TidefastError
from tidefast.resets import ASR
from tidefast.resets.base import registry

PARTS = ("measure", "when", "extent", "accumulation", "strength", "momentum")
"""Those of ASR that a study exchanges; its numbers may be as the network needs them."""


class StudyError(TidefastError):
    """A study could not get the runs that it needs."""


def missing(wanted: Iterable[Experiment], folder: Path) -> list[Experiment]:
    """The experiments that have no finished run below the folder."""
    return [experiment for experiment in _distinct(wanted) if not (folder / experiment.key / RESULT).is_file()]


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
        failed = [
            outcome for outcome in sweep(chosen, folder, jobs=jobs, threads=threads, watch=watch) if outcome.error
        ]
        if failed:
            raise StudyError(
                f"{len(failed)} of {len(chosen)} runs failed, the first {failed[0].experiment.key}: {failed[0].error}"
            )
    return [load(folder / experiment.key) for experiment in chosen]


def there(wanted: Iterable[Experiment], folder: Path) -> dict[str, Run]:
    """The finished runs of the experiments below the folder, by their keys."""
    return {
        experiment.key: load(folder / experiment.key)
        for experiment in _distinct(wanted)
        if (folder / experiment.key / RESULT).is_file()
    }


def finished(folders: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Every finished run in some folders and below them."""
    return [run for folder in folders for run in find(folder) if run.complete]


def asr_of(experiment: Experiment) -> ASR | None:
    """The reset policy of an experiment if it is ASR, or one of its named variants.

    >>> asr_of(Experiment("drift", "eta", reset="asr:alpha0=0.1")).alpha0
    0.1
    >>> asr_of(Experiment("drift", "eta", reset="periodic")) is None
    True
    """
    reset = experiment.reset
    if registry.variants().get(reset.name, (reset.name,))[0] != "asr":  # it may be one of a package that is not here
        return None
    policy = assembly.policy_of(experiment)
    assert isinstance(policy, ASR)
    return policy


def exchanged(policy: ASR) -> set[str]:
    """The parts of ASR that are not the usual ones.

    >>> exchanged(ASR(extent="full", alpha0=0.1))
    {'extent'}
    """
    usual = ASR()
    return {name for name in PARTS if getattr(policy, name) != getattr(usual, name)}


def plain(experiment: Experiment, *others: str) -> bool:
    """Whether it has no reset, one of the `others` by name, or ASR with nothing exchanged."""
    policy = asr_of(experiment)
    return experiment.reset.name in ("never", *others) if policy is None else not exchanged(policy)


def accuracy(run: Run) -> float:
    """The accuracy of a finished run in percent, over images, domains or visits as is customary for its stream."""
    return protocols.accuracy(run.experiment, result_of(run))


def reset_count(run: Run) -> float:
    """How often a finished run was reset."""
    return float(result_of(run)["resets"]["count"])


def result_of(run: Run) -> dict[str, Any]:
    """The summary of a finished run."""
    result = run.result
    assert result is not None, f"{run.folder} is not finished"
    return result


def _distinct(wanted: Iterable[Experiment]) -> list[Experiment]:
    return list({experiment.key: experiment for experiment in wanted}.values())
