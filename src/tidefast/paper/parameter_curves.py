"""Runs that differ in one number: accuracy against it, one curve for all that is otherwise alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidefast.bench.experiment import Experiment
from tidefast.bench.metrics import PairedDifference
from tidefast.bench.results import Run
from tidefast.paper import naming
from tidefast.paper.paired import over, reach
from tidefast.paper.study import StudyError, accuracy, reset_count


@dataclass(frozen=True)
class ParameterCurve:
    """Runs by the number that they differ in, in its order; those at one number differ in the seed."""

    label: str
    common: Experiment
    """What they have in common: the experiment without that number and its seed."""
    points: dict[float, list[Run]]

    @property
    def numbers(self) -> list[float]:
        """What is varied."""
        return list(self.points)

    @property
    def accuracies(self) -> list[float]:
        """In percent."""
        return [mean(accuracy, runs) for runs in self.points.values()]

    @property
    def resets(self) -> list[float]:
        """How often each was reset."""
        return [mean(reset_count, runs) for runs in self.points.values()]

    def change(self, at: float, base: float) -> PairedDifference:
        """The accuracy at one number against that at another."""
        return over(self.points[at], self.points[base])

    def reach(self, base: float) -> npt.NDArray[np.float64]:
        """Error bars [2, numbers]: of the differences to one of the numbers."""
        whiskers: npt.NDArray[np.float64] = np.transpose([reach(self.change(at, base)) for at in self.numbers])
        return whiskers

    def frame(self, name: str) -> dict[str, list[Any]]:
        """As columns, the number under a name."""
        return {
            "line": [self.label] * len(self.points),
            name: self.numbers,
            "accuracy": self.accuracies,
            "resets": self.resets,
        }


def lines(
    runs: Sequence[Run],
    value: Callable[[Run], float | None],
    common: Callable[[Experiment], dict[str, Any]],
    *,
    least: int = 2,
) -> list[ParameterCurve]:
    """The lines that have at least so many numbers, in the order of the runs.

    `value` is the number that varies (None: the run has none), `common` the fields of an experiment without it.
    """
    groups: dict[str, tuple[Experiment, dict[float, dict[int, Run]]]] = {}
    for run in runs:
        at = value(run)
        if at is None:
            continue
        rest = dataclasses.replace(run.experiment, seed=0, **common(run.experiment))
        _, points = groups.setdefault(rest.digest, (rest, {}))
        points.setdefault(at, {})[run.experiment.seed] = run
    kept = [(rest, level) for rest, points in groups.values() if len(level := _same_seeds(points)) >= least]
    commons = [rest for rest, _ in kept]
    alike = len(set(naming.contestants(commons))) == 1  # then the stream says enough
    labels = naming.streams(commons) if alike else naming.names(commons)
    return [ParameterCurve(label, rest, points) for label, (rest, points) in zip(labels, kept, strict=True)]


def without(option: str) -> Callable[[Experiment], dict[str, Any]]:
    """For `lines`: what experiments have in common that differ in an option of the reset policy."""

    def common(experiment: Experiment) -> dict[str, Any]:
        options = {key: value for key, value in experiment.reset.options.items() if key != option}
        return {"reset": dataclasses.replace(experiment.reset, options=options)}

    return common


def _same_seeds(points: dict[float, dict[int, Run]]) -> dict[float, list[Run]]:
    """The numbers that the seed with the most of them has, in order, with the runs of all seeds that have these."""
    having: dict[int, set[float]] = {}
    for at, runs in points.items():
        for seed in runs:
            having.setdefault(seed, set()).add(at)
    numbers = max(having.values(), key=len)
    seeds = [seed for seed, has in having.items() if has >= numbers]
    return {at: [points[at][seed] for seed in seeds] for at in sorted(numbers)}


def stacked(frames: Iterable[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    """One below the other."""
    columns: dict[str, list[Any]] = {}
    for frame in frames:
        for name, cells in frame.items():
            columns.setdefault(name, []).extend(cells)
    return columns


INTERVALS = "In brackets the interval of 95 % of the change, from blocks of batches of the same images."
"""A note below a table of changes."""


def within(bound: float) -> Callable[[PairedDifference], bool]:
    """Whether a change is surely smaller than a bound, in either direction: its whole interval is.

    >>> [within(1.0)(PairedDifference(0.5, 0.1, high)) for high in (0.9, 1.1)]
    [True, False]
    """
    return lambda change: -bound < change.low <= change.high < bound


def need(curves: Sequence[ParameterCurve], what: str) -> None:
    """Raise when there is no line: `what` names the runs that would make one."""
    if not curves:
        raise StudyError(f"none of these runs can be compared: there must be {what}")


def mean(what: Callable[[Run], float], runs: Sequence[Run]) -> float:
    """The mean of something over runs."""
    return sum(map(what, runs)) / len(runs)
