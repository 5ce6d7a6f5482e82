"""What stands in a cell: a metric of some runs, put together."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tidefast.adapter import Adapter
from tidefast.bench import assembly, metrics
from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import footprint
from tidefast.paper.study import accuracy, result_of

STEPS = 15
"""So many are timed; the fastest counts, for other load only adds."""
Metric = Callable[[Run], float]


@dataclass(frozen=True, eq=False)
class StreamValue:
    """What a metric is on one stream with one seed, and the answers that it is made of, where it is an accuracy."""

    level: str
    number: float
    answers: metrics.Answers


@dataclass(frozen=True)
class MeasuredValue:
    """A number, and the standard deviation over the runs that it is the mean of."""

    number: float
    std: float | None = None
    count: int = 1
    streams: tuple[StreamValue, ...] = ()
    """Those that it is the mean of, in the order of its column; none where it is something else than a mean."""

    def over(self, other: MeasuredValue) -> metrics.PairedDifference:
        """By how much it is above another in the same column; without an interval where batches cannot be paired."""
        if not self.streams or len(self.streams) != len(other.streams):
            return metrics.PairedDifference(self.number - other.number)
        levels: dict[str, list[metrics.StreamPair]] = {}
        for stream, other_stream in zip(self.streams, other.streams, strict=True):
            pair = metrics.StreamPair.of(stream.number - other_stream.number, stream.answers, other_stream.answers)
            levels.setdefault(stream.level, []).append(pair)
        return metrics.paired_difference([*levels.values()])


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
        return tuple(experiment.key for experiment in self.experiments)

    def value(self, runs: Mapping[str, Run]) -> MeasuredValue | None:
        """What the finished runs, by their keys, make of it; None when one is not there."""
        if any(key not in runs for key in self.keys):
            return None
        values = [self.metric(runs[key]) for key in self.keys]
        combined = self.combine(values)
        if math.isnan(combined):
            return None
        std = statistics.pstdev(values) if self.spread and len(values) > 1 else None
        streams = [_stream(self.metric, runs[key], value) for key, value in zip(self.keys, values, strict=True)]
        return MeasuredValue(combined, std, len(values), tuple(streams) if self.combine is statistics.fmean else ())


def _stream(metric: Metric, run: Run, value: float) -> StreamValue:
    """The answers behind a metric: all of the run, those of a visit, or none where it is no accuracy."""
    answers = run.answers if metric is accuracy else metrics.NO_ANSWERS
    if isinstance(metric, Visit):
        spans, visits = run.spans, np.unique(run.spans["visit"])
        chosen = spans["visit"] == visits[metric.at - 1]
        answers = spans["images"][chosen], spans["correct"][chosen]
    return StreamValue(run.experiment.stream.spelled, value, answers)


@dataclass(frozen=True)
class Visit:
    """The accuracy at a visit in percent, counted from 1; 0 is the last."""

    at: int

    def __call__(self, run: Run) -> float:
        """Of a finished run."""
        return 100.0 * float(result_of(run)["visits"][self.at - 1])


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
    """How many numbers are in memory for it once every average exists: network, copies, averages, the optimiser's."""
    return float(footprint.held(run.experiment, assembly.stream_of(run.experiment)[0].images))


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
    """The adapter of a run after its first batch."""
    stream = assembly.stream_of(run.experiment)
    adapter = assembly.adapter_of(run.experiment, assembly.model_of(run.experiment), stream)
    adapter(stream[0].images)
    return adapter
