"""What stands in a cell: a metric of some runs, put together."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidefast.adapter import Adapter
from tidefast.bench import assembly, metrics
from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper.study import accuracy, result_of

STEPS = 15
"""So many are timed; the fastest counts, for other load only adds."""
Metric = Callable[[Run], float]


@dataclass(frozen=True)
class MeasuredValue:
    """A number, and the standard deviation over the runs that it is the mean of."""

    number: float
    std: float | None = None
    count: int = 1


@dataclass(frozen=True)
class Quantity:
    """The metric of each of some experiments, put together; by default their mean."""

    experiments: tuple[Experiment, ...]
    metric: Metric = accuracy
    combine: Callable[[Sequence[float]], float] = statistics.fmean
    spread: bool = False
    """Whether the standard deviation over the experiments is of interest."""

    @functools.cached_property
    def keys(self) -> tuple[str, ...]:
        """Of the experiments."""
        return tuple(one.key for one in self.experiments)

    def value(self, runs: Mapping[str, Run]) -> MeasuredValue | None:
        """What the finished runs, by their keys, make of it; None when one is not there."""
        if any(key not in runs for key in self.keys):
            return None
        values = [self.metric(runs[key]) for key in self.keys]
        found = self.combine(values)
        many = self.spread and len(values) > 1
        return (
            None
            if math.isnan(found)
            else MeasuredValue(found, statistics.pstdev(values) if many else None, len(values))
        )


def visit(at: int) -> Metric:
    """The accuracy at a visit in percent, counted from 1; 0 is the last."""

    def metric(run: Run) -> float:
        return 100.0 * float(result_of(run)["visits"][at - 1])

    return metric


def recovery(at: int | None) -> Metric:
    """Knowledge recovery at a visit in percentage points, counted from 1, 0 is the last; None: the mean of all."""

    def metric(run: Run) -> float:
        values = [100.0 * float(value) for value in result_of(run)["knowledge_recovery"]]
        return statistics.fmean(values) if at is None else values[at - 1]

    return metric


def correlation(measure: str) -> Metric:
    """The magnitude of the correlation of batch accuracy and a measure of concentration, a column of a run's steps."""

    def metric(run: Run) -> float:
        if measure not in run.steps:  # a run of before it was measured
            return math.nan
        return abs(metrics.correlation(run.steps[measure], run.batch_accuracy))

    return metric


@functools.lru_cache(64)  # of one run one time, whatever it is compared with
def seconds(run: Run) -> float:
    """Processor time of a step, measured now: the times of a run depend on what else went on."""
    stream = assembly.stream_of(run.experiment)
    adapter, times = _adapter(run), []
    images = stream[0].images
    for _ in range(STEPS):
        began = time.process_time()
        adapter(images)
        times.append(time.process_time() - began)
    return min(times)


def trainable(run: Run) -> float:
    """How many numbers the method adapts."""
    return float(len(_adapter(run).network.arena))


def held(run: Run) -> float:
    """How many numbers are in memory for it after a batch: network, copies, averages, the optimiser's."""
    return float(_adapter(run).numbers_held())


def ratio(values: Sequence[float]) -> float:
    """The first in units of the second."""
    return values[0] / values[1] if values[1] else math.nan


def gain(values: Sequence[float]) -> float:
    """By how many percent the first is above the second.

    >>> gain([55.0, 50.0])
    10.0
    """
    return 100.0 * (values[0] - values[1]) / values[1] if values[1] else math.nan


def _adapter(run: Run) -> Adapter:
    """The adapter of a run after its first batch, when all that it keeps is there."""
    stream = assembly.stream_of(run.experiment)
    adapter = assembly.adapter_of(run.experiment, assembly.model_of(run.experiment), stream)
    adapter(stream[0].images)
    return adapter
