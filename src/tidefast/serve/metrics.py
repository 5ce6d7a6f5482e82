"""The service in numbers, as Prometheus reads them."""

from __future__ import annotations

import bisect
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import prometheus_client
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from tidefast.core.measurement import STANDARD, Measurement
from tidefast.core.record import StepRecord
from tidefast.serve.alarm_kinds import KINDS

OTHER = "other"
"""The label under which streams without a label of their own are summed; a stream of that name is among them."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
DEPTHS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class Histogram:
    """How many values were at most so large.

    >>> histogram = Histogram((1.0, 2.0))
    >>> for value in (0.5, 1.0, 7.0):
    ...     histogram.add(value)
    >>> histogram.buckets(), histogram.sum
    ([('1.0', 2), ('2.0', 2), ('+Inf', 3)], 8.5)
    """

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Take note of a value."""
        self.counts[bisect.bisect_left(self.edges, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, int]]:
        """Cumulative counts by upper edge."""
        total, cumulated = 0, []
        for edge, count in zip([*map(str, self.edges), "+Inf"], self.counts, strict=True):
            total += count
            cumulated.append((edge, total))
        return cumulated


@dataclass
class Totals:
    """What only grows."""

    steps: int = 0
    images: int = 0
    answers: int = 0
    resets: int = 0
    depth: float = 0.0
    nonfinite: int = 0
    calls: int = 0
    seconds: float = 0.0

    def add(self, other: Totals, sign: int = 1) -> None:
        """Add (or subtract) other totals."""
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))


_COUNTED = tuple(counter.name for counter in dataclasses.fields(Totals))


@dataclass
class StreamNumbers:
    """One stream's."""

    counts: Totals = field(default_factory=Totals)
    summed: Totals = field(default_factory=Totals)
    """The part of `counts` that is in the sum of the others, from times without a label."""
    measured: dict[str, float] = field(default_factory=dict)
    """The latest value of each measurement; most are taken at some steps only."""
    active: int = 0
    """When it was last active, as a number that grows with every call on any stream."""


_COUNTERS = (
    ("steps", "Adapting calls."),
    ("images", "Images answered."),
    ("answers", "Calls answered without adapting."),
    ("resets", "Resets by the policy."),
    ("nonfinite", "Batches that were unusable: infinities or nan in them or in what followed."),
)


class Reading(Collector):
    """Numbers of one moment, which nothing changes any more."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return prometheus_client.generate_latest(self)


class Metrics:
    """All numbers of a service; not safe under threads, `Watch` sees to that.

    streams: so many streams have labels of their own. Those that were active since the last reading keep theirs, free
    ones go to the most recently active. Labels of the others disappear and their counts join the sum of the others, so
    that the sum over all labels never loses anything.
    """

    def __init__(self, streams: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit, self._clock = streams, clock
        self.total = Totals()
        self.measures: Mapping[str, Measurement] = STANDARD
        self.latency = {"adapt": Histogram(SECONDS), "predict": Histogram(SECONDS)}
        self.depth = Histogram(DEPTHS)
        self.rejected: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.lost = self.waiting = 0
        self.snapshots = self.failures = self.snapshot_streams = 0
        self.snapshot_seconds = 0.0
        self._snapshot_at = clock()
        self.alarms: Counter[str] = Counter()
        self._streams: dict[str, StreamNumbers] = {}
        self._others = Totals()
        self._labelled: set[str] = set()
        self._activity = self._read_at = 0

    def step(self, name: str, record: StepRecord, latency: float, images: int) -> None:
        """Take note of an adapting call."""
        stream = self._touched(name)
        stream.measured.update(record.measurements)
        was_reset = record.reset_fraction > 0
        new = Totals(1, images, 0, int(was_reset), record.reset_fraction, int(record.nonfinite > 0), 1, latency)
        self.total.add(new)
        stream.counts.add(new)
        self.latency["adapt"].add(latency)
        if was_reset:
            self.depth.add(record.reset_fraction)

    def measured(self, name: str) -> dict[str, float]:
        """The latest value of each measurement of a stream."""
        stream = self._streams.get(name)
        return {} if stream is None else stream.measured

    def began_anew(self, name: str) -> None:
        """A stream was taken back to an earlier state, of which nothing has been measured."""
        self.measured(name).clear()

    def answered(self, name: str, latency: float, images: int) -> None:
        """Take note of a call that did not adapt."""
        new = Totals(images=images, answers=1, calls=1, seconds=latency)
        self.total.add(new)
        self._touched(name).counts.add(new)
        self.latency["predict"].add(latency)

    def snapshot(self, seconds: float, streams: int, ok: bool) -> None:
        """Take note of a snapshot, or of one that failed."""
        if not ok:
            self.failures += 1
            return
        self.snapshots += 1
        self.snapshot_seconds, self.snapshot_streams, self._snapshot_at = seconds, streams, self._clock()

    def forget(self, name: str) -> None:
        """A stream is gone; what it did stays in the sums."""
        stream = self._streams.pop(name, None)
        if stream is not None:
            self._sum_up(stream)
        self._labelled.discard(name)

    def _touched(self, name: str) -> StreamNumbers:
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = StreamNumbers()
        self._activity += 1
        stream.active = self._activity
        return stream

    def _sum_up(self, stream: StreamNumbers) -> None:
        """Move what is not yet in the sum of the others there."""
        self._others.add(stream.counts)
        self._others.add(stream.summed, sign=-1)
        stream.summed = dataclasses.replace(stream.counts)

    def _choose(self) -> None:
        """Decide which streams have labels until the next reading."""
        kept = {name for name in self._labelled if self._streams[name].active > self._read_at}
        recent = sorted(self._streams, key=lambda name: self._streams[name].active, reverse=True)
        for name in recent:
            if len(kept) >= self.limit:
                break
            if name != OTHER:
                kept.add(name)
        self._labelled, self._read_at = kept, self._activity
        for name, stream in self._streams.items():
            if name not in kept and stream.counts != stream.summed:
                self._sum_up(stream)

    # -- what Prometheus reads ---------------------------------------------------------------------------------

    def read(self) -> Reading:
        """All numbers as they are now."""
        self._choose()
        return Reading([*self._of_all(), *self._of_streams()])

    def _of_all(self) -> Iterator[Metric]:
        for name, help_ in _COUNTERS:
            yield CounterMetricFamily(f"tidefast_{name}", help_, value=getattr(self.total, name))
        depth = HistogramMetricFamily("tidefast_reset_depth", "Share of layers that a reset took.")
        depth.add_metric([], self.depth.buckets(), self.depth.sum)
        yield depth
        latency = HistogramMetricFamily("tidefast_latency_seconds", "From a request to its answer.", labels=["call"])
        for call, histogram in self.latency.items():
            latency.add_metric([call], histogram.buckets(), histogram.sum)
        yield latency
        yield _by("tidefast_rejected", "Requests refused, by reason.", "reason", self.rejected)
        yield _by("tidefast_events", "What was done to streams.", "what", self.events)
        yield CounterMetricFamily("tidefast_lost_steps", "Steps lost with damaged or missing files.", value=self.lost)
        alarms = GaugeMetricFamily("tidefast_alarms", "Active alarms.", labels=["kind"])
        for kind in KINDS:
            alarms.add_metric([kind], self.alarms[kind])
        yield alarms
        yield GaugeMetricFamily("tidefast_queue_images", "Images that wait for their batch.", value=self.waiting)
        yield GaugeMetricFamily("tidefast_streams", "Streams active since the start.", value=len(self._streams))
        yield CounterMetricFamily("tidefast_snapshots", "Snapshots taken.", value=self.snapshots)
        yield CounterMetricFamily("tidefast_snapshot_failures", "Snapshots that failed.", value=self.failures)
        age = self._clock() - self._snapshot_at
        yield GaugeMetricFamily("tidefast_snapshot_age_seconds", "Since the last snapshot, or the start.", value=age)
        yield GaugeMetricFamily("tidefast_snapshot_seconds", "The last one took.", value=self.snapshot_seconds)
        yield GaugeMetricFamily("tidefast_snapshot_streams", "Streams in the last one.", value=self.snapshot_streams)

    def _of_streams(self) -> Iterator[Metric]:
        labelled = sorted(self._labelled)
        measured = {stream: dict(self._streams[stream].measured) for stream in labelled}
        for name, measurement in self.measures.items():
            gauge = GaugeMetricFamily(f"tidefast_stream_{name}", measurement.description, labels=["stream"])
            for stream, values in measured.items():
                if name in values:
                    gauge.add_metric([stream], values[name])
            yield gauge
        shown = {stream: dataclasses.replace(self._streams[stream].counts) for stream in labelled}
        for stream, counts in shown.items():
            counts.add(self._streams[stream].summed, sign=-1)
        shown[OTHER] = self._others
        for name, help_ in (*_COUNTERS, ("depth", "Sum of the shares of layers that resets took.")):
            counter = CounterMetricFamily(f"tidefast_stream_{name}", help_, labels=["stream"])
            for stream, counts in shown.items():
                counter.add_metric([stream], getattr(counts, name))
            yield counter
        latency = SummaryMetricFamily("tidefast_stream_latency_seconds", "From request to answer.", labels=["stream"])
        for stream, counts in shown.items():
            latency.add_metric([stream], counts.calls, counts.seconds)
        yield latency


def _by(name: str, help_: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, help_, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family
