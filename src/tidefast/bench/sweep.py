"""Many experiments: a grid of them, on the processes of this machine or on a cluster."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidefast.bench import assembly, interruption, text
from tidefast.bench.experiment import Experiment
from tidefast.bench.ledger import Ledger
from tidefast.bench.results import ENVIRONMENT, read_json
from tidefast.bench.runner import claim, clear
from tidefast.bench.sharing import release, remove_left_overs, sharing
from tidefast.bench.work import Job, Report
from tidefast.core.files import LOCK, locked
from tidefast.core.validation import require_choice, require_count

BACKENDS = ("local", "ray")
STOP = ".stop"
"""While a file of this name is in a sweep's folder, its runs end after the batch at hand, whatever node they are on."""


@dataclass(frozen=True)
class Outcome:
    """How one experiment of a sweep ended; `error` is None when it finished."""

    experiment: Experiment
    folder: Path
    error: str | None


@dataclass(frozen=True)
class Progress:
    """How far a sweep is: batches of one experiment, seen and in all (0 while that is not known)."""

    experiment: Experiment
    seen: int
    total: int
    finished: bool


def experiments(grid: Mapping[str, Any] | str | os.PathLike[str]) -> list[Experiment]:
    """The experiments of a grid: a field that is a list is an axis. `grids` is a list of such grids, which share the
    other fields. A path is read as YAML.

    >>> grid = {"stream": "drift", "seed": [43, 44], "grids": [{"method": "source"},
    ...         {"method": ["eta", "roid"], "reset": ["never", "asr"]}]}
    >>> [experiment.label for experiment in experiments(grid) if experiment.seed == 43]
    ['Source', 'ETA', 'ETA + ASR', 'ROID', 'ROID + ASR']
    """
    if not isinstance(grid, Mapping):
        path = Path(grid)
        try:
            return experiments(_mapping(text.parse(path.read_text(encoding="utf-8"))))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error
    shared = {name: value for name, value in grid.items() if name != "grids"}
    distinct: dict[str, Experiment] = {}
    for own in grid.get("grids", [{}]):
        fields = {**shared, **_mapping(own)}
        axes = [value if isinstance(value, list) else [value] for value in fields.values()]
        for values in itertools.product(*axes):
            experiment = Experiment.of(dict(zip(fields, values, strict=True)))
            distinct.setdefault(experiment.key, experiment)
    return list(distinct.values())


def sweep(
    grid: Iterable[Experiment] | Mapping[str, Any] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    threads: int | None = None,
    backend: str = "local",
    address: str | None = None,
    snapshot_every: int = 100,
    retries: int = 3,
    fresh: bool = False,
    watch: Callable[[list[Progress]], None] | None = None,
) -> list[Outcome]:
    """Run every experiment of a grid below the folder `out`; finished ones are not run again.

    jobs: runs at a time, by default one per core (with ray: as many as the cluster has room for).
    threads: of each run, by default the cores that its share of the machine has.
    backend: "local" processes, or "ray"; then `address` is that of a cluster, and without one Ray runs on this machine.
    The nodes of a cluster must have tidefast installed and see `out` under the same path.
    retries: a run whose process or node is lost is taken up from its snapshot, so many times without any progress.
    fresh: delete the earlier runs of these experiments first. watch: told now and then how far each experiment is.
    Ctrl-C lets the runs at hand finish their batch and take a snapshot; a second one, or SIGTERM, ends them at once.
    """
    require_choice("backend", backend, BACKENDS)
    if address is not None and backend != "ray":
        raise ValueError("an address is for the ray backend: add --backend ray")
    chosen = experiments(grid) if isinstance(grid, (str, os.PathLike, Mapping)) else list(grid)
    if not chosen:
        raise ValueError("the sweep holds no experiment")
    for experiment in chosen:
        assembly.check(experiment)
    cores = os.cpu_count() or 1
    jobs = min(cores, len(chosen)) if jobs is None else jobs
    threads = max(1, cores // jobs) if threads is None else threads
    for name, value in (("jobs", jobs), ("threads", threads), ("snapshot_every", snapshot_every)):
        require_count(name, value)
    require_count("retries", retries, low=0)
    root = Path(out).resolve()
    root.mkdir(parents=True, exist_ok=True)
    stop = root / STOP
    modules = assembly.modules()
    work = {e.key: Job(e, root / e.key, stop, threads, snapshot_every, modules=modules) for e in chosen}
    observe = functools.partial(_observe, list(work.values()), watch)
    errors: dict[str, str] = {}
    with locked(root / LOCK), interruption.termination():
        stop.unlink(missing_ok=True)
        remove_left_overs(root)
        for job in work.values() if fresh else ():
            clear(job.folder)
        observe()
        waiting = [job for job in work.values() if not job.is_finished()]
        for job in work.values():
            if job.is_finished():
                claim(job.folder, job.experiment)  # its titles may be new
        for report in _run(waiting, root, jobs, retries, observe, backend, address) if waiting else ():
            if report.error is not None:
                errors[report.key] = report.error
        observe()
    for key, job in work.items():
        if not job.is_finished():
            errors.setdefault(key, f"stopped, because {stop} was there")
    return [Outcome(job.experiment, job.folder, errors.get(key)) for key, job in work.items()]


def _run(
    waiting: list[Job],
    root: Path,
    processes: int,
    retries: int,
    observe: Callable[[], None],
    backend: str,
    address: str | None,
) -> list[Report]:
    run = _backend(backend, address)
    if backend == "ray":  # its nodes may be far from the disk
        return run(waiting, processes, retries, observe)
    with sharing(waiting, root) as sharers:

        def look() -> None:
            release(sharers)
            observe()

        return run(sharers, processes, retries, look)


def _backend(name: str, address: str | None) -> Callable[[list[Job], int, int, Callable[[], None]], list[Report]]:
    if name == "ray":
        from tidefast.bench.cluster import on_ray

        return functools.partial(on_ray, address=address)
    from tidefast.bench.local import on_processes

    return on_processes


def _observe(jobs: list[Job], watch: Callable[[list[Progress]], None] | None) -> None:
    """What the disk says: it is the same for every backend, and for runs of an earlier sweep."""
    if watch is None:
        return
    told = []
    for job in jobs:
        finished = job.is_finished()
        total = int((read_json(job.folder / ENVIRONMENT) or {}).get("batches", job.experiment.steps or 0))
        seen = total if finished else Ledger(job.folder).written()
        told.append(Progress(job.experiment, seen, total, finished))
    watch(told)


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"a grid is a mapping such as {{stream: drift, method: [eta, roid]}}, got {value!r}")
    return value
