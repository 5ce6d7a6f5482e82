"""When a stream, or the service, needs an engineer: bounds, and the alarms that they raise and clear."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from tidefast.core.constraints import Constrained, Count, Positive, PositiveShare, Share
from tidefast.core.record import StepRecord
from tidefast.core.validation import require_count
from tidefast.serve.alarm_kinds import ADAPTATION
from tidefast.serve.canaries import AGREEMENT, EVIDENCE, REFERENCE


@dataclass(frozen=True)
class ImageStatistics:
    """Of the pixels of one batch, on the scale where black is 0 and white is 1."""

    mean: float
    deviation: float
    lowest: float
    highest: float
    count: int = 1
    """Images in the batch."""


@dataclass(frozen=True)
class Alarm:
    """Something that an engineer should look at; `active` is False in the report that it is over."""

    stream: str | None
    """None when it is about the service."""
    kind: str
    since: float
    """When it was raised, in seconds since 1970."""
    message: str
    """What was found, and what to do."""
    value: float
    bound: float
    active: bool = True


@dataclass(frozen=True)
class Bounds(Constrained):
    """What is normal. The defaults are far outside of what healthy streams did in our benchmarks.

    An alarm is cleared when what raised it happens less than half as often as it takes to raise it.

    >>> Bounds(resets=5, window=50).stuck
    10
    >>> Bounds(disagreement=1.5)
    Traceback (most recent call last):
    ...
    ValueError: disagreement must lie in [0.0, 1.0], got 1.5
    """

    resets: Count = 20
    """More resets than that within `window` steps raise "resets"."""
    window: Count = 100
    stuck: Count = 10
    """A concentration above its threshold in so many steps in a row raises "concentration"."""
    concentration: Share = 0.9
    """For policies without a threshold: above this share of the way from all classes alike (0) to one class (1)."""
    disagreement: Share = 0.8
    """An inconsistency above this in 4 of 5 of the last `disagreement_window` steps raises "disagreement"."""
    disagreement_window: Count = 50
    canaries: Positive = 3.0
    """Known images answered so many standard errors worse than before adapting raise "canaries", """
    canaries_fall: Share = 0.1
    """if that is also so large a share of them."""
    units: Positive = 8.0
    """Images so many deviations from the stream's own slow average in 3 of 4 of the last `input_window` batches
    raise "input"."""
    input_window: Count = 20
    settle: Annotated[int, Ge(2)] = 50
    """Batches from which the slow average starts; before that, it judges nothing."""
    pace: PositiveShare = 0.01
    """How fast the slow average follows: what lasts a few times 1 / pace batches becomes the new normal."""
    normal_mean: tuple[float, float] | None = None
    """Range of the mean of a batch's pixels, where it is known beforehand; outside of it images are not normal."""
    normal_deviation: tuple[float, float] | None = None
    """Range of the deviation of a batch's pixels, likewise."""
    flat: Share = 0.01
    """Batches whose pixels all lie within this are not normal: a covered lens, a dead sensor."""
    nonfinite: Count = 3
    """So many unusable batches among the last `nonfinite_window` raise "nonfinite"."""
    nonfinite_window: Count = 20
    failures: Count = 2
    """So many failed snapshots in a row raise "snapshots"; one that works clears it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("nonfinite_window", self.nonfinite_window, low=self.nonfinite)
        require_count("window", self.window, low=self.resets + 1)
        for name in ("normal_mean", "normal_deviation"):
            given = getattr(self, name)
            if given is not None and not (len(given) == 2 and given[0] <= given[1]):
                raise ValueError(f"{name} must be a pair (lowest, highest), got {given!r}")


class Latch:
    """On after `some` of the last `among`, off again below half of that rate.

    >>> latch = Latch(2, 3)
    >>> [latch(bad) for bad in (True, False, True, False, False, False)]
    [False, False, True, True, True, False]
    """

    def __init__(self, some: int, among: int) -> None:
        self.some, self.among = some, among
        self._recent = 0  # one bit each, the latest is the lowest
        self.on = False

    def __call__(self, bad: bool) -> bool:
        self._recent = ((self._recent << 1) | bad) & ((1 << self.among) - 1)
        if self.count >= self.some:
            self.on = True
        elif 2 * self.count < self.some:
            self.on = False
        return self.on

    @property
    def count(self) -> int:
        """How many of the last were bad."""
        return self._recent.bit_count()

    def clear(self) -> None:
        """Forget what was seen."""
        self._recent, self.on = 0, False


class SlowAverage:
    """A centre and a scatter that follow slowly and are not carried away by outliers.

    The first `settle` values give their median; from then on each moves the average by no more than three deviations
    times `pace`. A batch of fewer images than usual may scatter more, by the square root. The scatter counts as at
    least `floor`, so that a stream that was very steady is allowed small changes.
    """

    def __init__(self, settle: int, pace: float, floor: float) -> None:
        self.settle, self.pace, self.floor = settle, pace, floor
        self.centre = self.scatter = math.nan
        self._first: list[float] = []
        self._count = 1.0

    def __call__(self, value: float, count: int) -> float:
        """Take a value; how many deviations it is away from those before."""
        if math.isnan(self.centre):
            self._settle(value, count)
            return 0.0
        slack = max(1.0, math.sqrt(self._count / count))
        distance = (value - self.centre) / slack
        away = abs(distance) / self.scatter
        limit = 3.0 * self.scatter
        self.centre += self.pace * max(-limit, min(limit, distance))
        # The mean distance of a normal variable from its mean is 0.8 deviations.
        self.scatter += self.pace * (1.25 * min(limit, abs(distance)) - self.scatter)
        self.scatter = max(self.floor, self.scatter)
        self._count += self.pace * (count - self._count)
        return away

    def _settle(self, value: float, count: int) -> None:
        self._first.append(value)
        self._count += (count - self._count) / len(self._first)
        if len(self._first) == self.settle:
            self.centre = statistics.median(self._first)
            spread = statistics.median(abs(value - self.centre) for value in self._first)
            self.scatter = max(self.floor, 1.4826 * spread)
            self._first.clear()


@dataclass
class _Check:
    """What a step says about one kind of alarm."""

    kind: str
    bad: bool
    value: float
    bound: float


@dataclass
class StreamAlarms:
    """The alarms of one stream: give it every step, and it tells which kinds are on."""

    bounds: Bounds
    classes: int | None = None
    values: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By kind: the latest value, and its bound."""

    def __post_init__(self) -> None:
        bounds = self.bounds
        self._latches = {
            "resets": Latch(bounds.resets + 1, bounds.window),
            "concentration": Latch(bounds.stuck, bounds.stuck),
            "disagreement": Latch(math.ceil(0.8 * bounds.disagreement_window), bounds.disagreement_window),
            "canaries": Latch(1, 1),
            "input": Latch(math.ceil(0.75 * bounds.input_window), bounds.input_window),
            "nonfinite": Latch(bounds.nonfinite, bounds.nonfinite_window),
        }
        self._mean = SlowAverage(bounds.settle, bounds.pace, floor=0.01)
        self._deviation = SlowAverage(bounds.settle, bounds.pace, floor=0.05)  # of its logarithm: contrast multiplies
        self._odd = ""

    def step(self, record: StepRecord, images: ImageStatistics) -> None:
        """Take note of a step."""
        for finding in self._findings(record, images):
            self._latches[finding.kind](finding.bad)
            if finding.bad or finding.kind not in self.values:
                self.values[finding.kind] = (finding.value, finding.bound)

    def on(self) -> set[str]:
        """Kinds that are active."""
        return {kind for kind, latch in self._latches.items() if latch.on}

    def clear(self, kinds: tuple[str, ...] = ADAPTATION) -> None:
        """Forget what led to these kinds."""
        for kind in kinds:
            self._latches[kind].clear()

    def _findings(self, record: StepRecord, images: ImageStatistics) -> Iterator[_Check]:
        bounds = self.bounds
        unusable = record.nonfinite > 0
        yield _Check("nonfinite", unusable, self._latches["nonfinite"].count + unusable, bounds.nonfinite)
        if record.skipped is None or record.reset_fraction > 0:
            was_reset = record.reset_fraction > 0
            yield _Check("resets", was_reset, self._latches["resets"].count + was_reset, bounds.resets)
        if record.concentration is not None:
            if record.threshold is not None:
                above = record.concentration > record.threshold
                yield _Check("concentration", above, record.concentration, record.threshold)
            elif self.classes is not None:
                share = 1.0 + record.concentration / math.log(self.classes)
                yield _Check("concentration", share > bounds.concentration, share, bounds.concentration)
        if record.inconsistency is not None:
            far = record.inconsistency > bounds.disagreement
            yield _Check("disagreement", far, record.inconsistency, bounds.disagreement)
        if EVIDENCE in record.measurements:
            yield self._canaries(record.measurements)
        if math.isfinite(images.mean) and math.isfinite(images.deviation):
            yield self._input(images)

    def _canaries(self, measured: Mapping[str, float]) -> _Check:
        """Whether known images are answered worse than before adapting, by more than chance and by more than little."""
        now, before, evidence = (measured[name] for name in (AGREEMENT, REFERENCE, EVIDENCE))
        share = 0.5 if self._latches["canaries"].on else 1.0  # once raised, it stays until half of it is made up for
        significant = evidence > share * self.bounds.canaries
        fallen = now < (1.0 - share * self.bounds.canaries_fall) * before
        return _Check("canaries", significant and fallen, now, before)

    def _input(self, images: ImageStatistics) -> _Check:
        """Whether the images are unlike the stream's own, or unlike what was given as normal."""
        bounds = self.bounds
        away_mean = self._mean(images.mean, images.count)
        away_deviation = self._deviation(math.log(max(images.deviation, 1e-3)), images.count)
        if images.highest - images.lowest < bounds.flat:
            self._odd = "their pixels are all alike"
            return _Check("input", True, images.highest - images.lowest, bounds.flat)
        for what, value, normal in (
            ("mean", images.mean, bounds.normal_mean),
            ("deviation", images.deviation, bounds.normal_deviation),
        ):
            if normal is not None and not normal[0] <= value <= normal[1]:
                self._odd = f"the {what} of their pixels is {value:.3f}, given as normal was {normal[0]} to {normal[1]}"
                return _Check("input", True, value, normal[0] if value < normal[0] else normal[1])
        away, what, value = max(
            (away_mean, "mean", images.mean),
            (away_deviation, "deviation", images.deviation),
            key=lambda candidate: candidate[0],
        )
        if away > bounds.units:
            usual = self._mean.centre if what == "mean" else math.exp(self._deviation.centre)
            self._odd = f"the {what} of their pixels is {value:.3f}, usual for this stream is {usual:.3f}"
        return _Check("input", away > bounds.units, away, bounds.units)

    def message(self, kind: str) -> str:
        """What was found, and what to do about it."""
        bounds = self.bounds
        value, bound = self.values[kind]
        count, among = self._latches[kind].count, self._latches[kind].among
        if kind == "resets":
            return (
                f"{count} resets in the last {among} steps, {bounds.resets} are still normal: what it learns does not "
                "last. Look at its images; roll it back or reset it, and freeze it if this comes again."
            )
        if kind == "concentration":
            return (
                f"the concentration of predictions was above its bound for {count} steps in a row, the last time by "
                f"{value - bound:.3g}: few classes are predicted for everything. Roll the stream back to a snapshot "
                "from before, or reset it."
            )
        if kind == "disagreement":
            return (
                f"source and adapted model disagreed on more than {bound:.0%} of the images in {count} of the last "
                f"{among} steps: one of them is wrong nearly always. Check some answers by hand; if the source model "
                "is right, reset the stream."
            )
        if kind == "canaries":
            return (
                f"answers to known images changed: {100 * bound:.0f} % to {100 * value:.0f} %. So many got the source "
                "model's answer before adapting, and get it now, when they look like this stream's images: it forgets "
                "what it knew. Roll it back to a snapshot from before, or reset it; the guard as reset policy, or a "
                "lower learning rate, prevents it."
            )
        if kind == "input":
            return (
                f"images unlike before in {count} of the last {among} batches: {self._odd}. Check the camera and what "
                "prepares its images; freeze the stream until they are right again."
            )
        return (
            f"{count} of the last {among} batches could not be used, they held or led to infinities or nan: they were "
            "answered and did not change the stream. Check what feeds it."
        )
