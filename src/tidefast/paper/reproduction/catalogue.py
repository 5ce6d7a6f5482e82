"""The list of what can be reproduced: what each needs, how much of it is there, how long the rest takes."""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import torch

from tidefast import methods, models
from tidefast.adapter import Adapter
from tidefast.bench import assembly
from tidefast.bench.experiment import Experiment
from tidefast.bench.results import EXPERIMENT, RESULT, read_json
from tidefast.paper import study
from tidefast.paper.beside import STREAMS
from tidefast.paper.reproduction.targets import ReproductionTarget
from tidefast.report.sheet import Cell, Row, Sheet, number

BUNDLED = "bundled"
_OPTIONS = {
    "ccc": "--imagenet with --matrix, or --ccc-shards",
    "ccc-shards": "--ccc-shards",
    "cin-c": "--imagenet-c",
    "cin-c-noniid": "--imagenet-c",
    "in-c-recurring": "--imagenet-c",
    "cdc": "--imagenet-c",
    "in-d109-recurring": "--d109",
    "cifar10-c": "--cifar10-c",
    "cifar100-c": "--cifar100-c",
}
_GIVEN = ("data", "path", "root")
_SOURCE = "--source"
_MEASURED, _ROUNDS = 8, 3
Kind: TypeAlias = tuple[str, str, str, int | None]
"""Method, family of the reset policy, network, batch."""


def catalogue(targets: Sequence[ReproductionTarget], folder: Path, jobs: int | None = None) -> Sheet:
    """A row for each, and one for all: runs that several share are counted once there."""
    clock = Clock(folder)
    jobs = jobs or os.cpu_count() or 1
    rows = []
    every = {experiment.key: experiment for target in targets for experiment in target.experiments}
    for target in targets:
        todo = study.missing(target.experiments, folder)
        spent = clock.seconds(todo, min(jobs, max(1, len(todo))))
        total = len({experiment.key for experiment in target.experiments})
        rows.append(_row(target.label, _data(target), total, total - len(todo), spent, target.title))
    todo = study.missing(every.values(), folder)
    spent = clock.seconds(todo, jobs)
    rows.append(_row("all", "", len(every), len(every) - len(todo), spent, "runs that several need counted once"))
    notes = (
        f"Time for the runs that are left, {jobs} at a time, judged by finished runs of the same kind or by a few "
        "steps measured just now; other load on the machine comes on top.",
    )
    columns = ("data", "runs", "finished", "time left", "what")
    return Sheet("reproducible", "What can be reproduced", "", columns, tuple(rows), notes)


def _row(label: str, data: str, runs: int, finished: int, spent: float | None, title: str) -> Row:
    time = spoken(spent) if runs > finished else "-"
    texts = [Cell(text, text) for text in (data or "-", time, title)]
    return Row(label, (texts[0], number(runs, 0), number(finished, 0), *texts[1:]))


def _data(target: ReproductionTarget) -> str:
    if not target.experiments:
        return ""
    return ", ".join(needed(target.experiments)) or BUNDLED


def needed(experiments: Iterable[Experiment]) -> list[str]:
    """What must be given for some experiments; nothing for those on bundled images."""
    seconds: dict[str, None] = {}
    for experiment in experiments:
        if experiment.stream.name in _OPTIONS:
            seconds[_OPTIONS[experiment.stream.name]] = None
            if _wants_source(experiment):
                seconds[_SOURCE] = None
    return list(seconds)


def absent(experiments: Iterable[Experiment]) -> list[str]:
    """What must be given, and is not."""
    wanted = [experiment for experiment in experiments if experiment.stream.name in _OPTIONS]
    lacking = {
        _OPTIONS[experiment.stream.name]: None
        for experiment in wanted
        if not any(name in experiment.stream.options for name in _GIVEN)
    }
    if any(experiment.source is None and _wants_source(experiment) for experiment in wanted):
        lacking[_SOURCE] = None
    return list(lacking)


def _wants_source(experiment: Experiment) -> bool:
    """Whether the stream's own clean images, which come without labels, are not there or not enough."""
    parts = assembly.method_of(experiment), assembly.policy_of(experiment)
    needs = [part.needs_source for part in parts if part.needs_source]
    return any(text.startswith("labelled") for text in needs) or (bool(needs) and experiment.stream.name != "ccc")


class Clock:
    """Times of experiments; `folder` holds the runs to judge by."""

    def __init__(self, folder: Path) -> None:
        self._known = _history(folder)
        self._lengths: dict[str, int | None] = {}
        self._rendering: dict[str, float] = {}

    def seconds(self, experiments: Iterable[Experiment], jobs: int) -> float | None:
        """For all of them, so many at a time; None when that cannot be known here."""
        total = 0.0
        rendered: set[str] = set()
        for experiment in experiments:
            batches, each = self._batches(experiment), self._each(experiment)
            if batches is None or each is None:
                return None
            total += batches * each
            text = assembly.stream_text(experiment)
            if text not in rendered:  # runs of one sweep share the batches of a stream
                rendered.add(text)
                total += batches * self._rendered(experiment)
        return total / jobs

    def _each(self, experiment: Experiment) -> float | None:
        kind = _kind(experiment)
        if kind in self._known:
            return self._known[kind]
        unit = _unit(experiment.model.name, experiment.batch or 64)
        return None if unit is None else unit * _cost(experiment) / _passes("eta")

    def _batches(self, experiment: Experiment) -> int | None:
        if experiment.steps is not None:
            return experiment.steps
        text = assembly.stream_text(experiment)
        if text not in self._lengths:
            try:
                self._lengths[text] = len(assembly.stream_of(experiment))
            except (ValueError, TypeError, OSError):  # its files are not given
                published = STREAMS.get(experiment.stream.name)
                self._lengths[text] = None if published is None else published.batches
        return self._lengths[text]

    def _rendered(self, experiment: Experiment) -> float:
        """Seconds to make a batch."""
        name = f"{experiment.stream.name} {experiment.batch}"
        if name not in self._rendering:
            try:
                stream = assembly.stream_of(experiment)
                stream[0]
                began = time.perf_counter()
                stream[len(stream) // 2]
                self._rendering[name] = time.perf_counter() - began
            except (ValueError, TypeError, OSError):
                self._rendering[name] = 0.0
        return self._rendering[name]


def spoken(seconds: float | None) -> str:
    """A duration in words.

    >>> spoken(42), spoken(600), spoken(9000), spoken(1e6), spoken(None)
    ('1 min', '10 min', '2.5 h', '12 days', 'unknown here')
    """
    if seconds is None:
        return "unknown here"
    if seconds < 3600:
        return f"{max(1, round(seconds / 60))} min" if seconds else "0"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.0f} days"


def _history(folder: Path) -> dict[Kind, float]:
    """The median time of a batch, by the kind of run."""
    seconds: dict[Kind, list[float]] = {}
    for path in folder.rglob(RESULT) if folder.is_dir() else ():
        stored, result = read_json(path.parent / EXPERIMENT), read_json(path)
        if stored is not None and result is not None and result.get("seconds_per_batch"):
            seconds.setdefault(_kind(Experiment.of(stored)), []).append(float(result["seconds_per_batch"]))
    return {kind: statistics.median(times) for kind, times in seconds.items()}


def _kind(experiment: Experiment) -> Kind:
    family = experiment.reset.name.partition("-")[0]
    return experiment.method.spelled, family, experiment.model.name, experiment.batch


def _cost(experiment: Experiment) -> float:
    inconsistency = experiment.reset.name.startswith("asr")  # a forward pass of the source model
    return _passes(experiment.method.name) + (1.0 if inconsistency else 0.0)


@functools.cache
def _passes(method: str) -> float:
    """Forward passes that a step costs; a backward pass counts two."""
    forward, backward = methods.base.registry.get(method)().passes(1.0)
    return forward + 2.0 * backward


@functools.cache
def _unit(model: str, batch: int) -> float | None:
    """Seconds of a step of ETA on a network without its weights; None where it cannot be made."""
    if ":" in model:
        return None
    bundled = model.startswith("bundled")
    side, measured = (32, batch) if bundled else (224, min(batch, _MEASURED))
    try:
        network = models.registry.get(model)().build().eval()
    except (ImportError, RuntimeError):
        return None
    adapter = Adapter(network, method="eta")
    images = torch.rand(measured, 3, side, side, generator=torch.Generator().manual_seed(0))
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        adapter(images)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * batch / measured
