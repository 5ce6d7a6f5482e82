"""What a page shows: the contestants' results along one stream, and a few images of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidefast import bench
from tidefast.bench import metrics
from tidefast.bench.calibration import Reliability
from tidefast.bench.metrics import Counts, Floats
from tidefast.core.measurement import Measurement

Thumbnails: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ContestantHistory:
    """One contestant, batch by batch; arrays are as long as it got, `total` is the length of the stream."""

    key: str
    label: str
    total: int
    correct: Floats
    count: Floats
    predicted: Counts
    """[batches, classes]: how often each class was predicted."""
    labels: Counts
    """[batches, classes]: how often each class was there."""
    domains: Sequence[str]
    reset_fraction: Floats
    """Share of layers reset after the batch; 0 when none."""
    concentration: Floats
    """nan where the policy does not measure it, and so is `threshold`."""
    threshold: Floats
    seconds: Floats
    measures: Mapping[str, Measurement] = field(default_factory=dict)
    """What else the policy measures."""
    measurements: Mapping[str, Floats] = field(default_factory=dict)
    """By a name of `measures`; nan where it was not measured."""
    reliability: Reliability | None = None
    """What its answers are worth as probabilities, where that was kept."""

    def __post_init__(self) -> None:
        for name in ("count", "predicted", "labels", "domains", "reset_fraction", "concentration", "threshold"):
            if len(getattr(self, name)) != self.batches:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries, expected {self.batches}")
        for name, values in self.measurements.items():
            if len(values) != self.batches:
                raise ValueError(f"{name} has {len(values)} entries, expected {self.batches}")

    @classmethod
    def empty(cls, key: str, label: str, total: int) -> ContestantHistory:
        """A contestant that has not begun."""
        none, nothing = np.empty(0), np.empty((0, 0), np.int64)
        return cls(key, label, total, none, none, nothing, nothing, [], none, none, none, none)

    @property
    def batches(self) -> int:
        """How far it got."""
        return len(self.correct)

    @property
    def overall(self) -> float:
        """Accuracy over everything it saw; nan when that is nothing."""
        return self.accuracy(slice(None))

    @property
    def resets(self) -> Counts:
        """The batches after which it was reset, counted from 0."""
        return metrics.reset_batches(self.reset_fraction)

    @property
    def measures_concentration(self) -> bool:
        """Whether there is a concentration and a threshold to show."""
        return bool(np.isfinite(self.concentration).any() and np.isfinite(self.threshold).any())

    @property
    def compared(self) -> list[dict[str, Floats]]:
        """The measurements that have something to show, those that are to be compared together."""
        shown = {name: values for name, values in self.measurements.items() if np.isfinite(values).any()}
        leads = [name for name in shown if self.measures[name].beside not in shown]
        return [{n: v for n, v in shown.items() if lead in (n, self.measures[n].beside)} for lead in leads]

    def over(self, other: ContestantHistory) -> metrics.PairedDifference:
        """By how many points it is above another on the same stream, with the interval of 95 %."""
        pair = metrics.StreamPair.of(
            100 * (self.overall - other.overall), (self.count, self.correct), (other.count, other.correct)
        )
        return metrics.paired_difference([[pair]])

    def accuracy(self, part: slice) -> float:
        """Accuracy over a part of the stream."""
        return metrics.accuracy(self.correct[part], self.count[part])

    def smooth_accuracy(self, window: int) -> Floats:
        """At each batch, the accuracy over the `window` batches around it; fewer at the ends."""
        return metrics.smooth_accuracy(self.correct, self.count, window)


@dataclass(frozen=True, eq=False)
class Sample:
    """A few images [n, height, width, 3] of one batch."""

    step: int
    domain: str
    images: Thumbnails = field(repr=False)
    labels: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class ReportData:
    """Everything on a page. `reference` is the key of the contestant that the others are compared with, `floor` that of
    the one that learns nothing, below which none should fall; without it nobody is said to have."""

    title: str
    histories: Sequence[ContestantHistory]
    reference: str
    classes: Sequence[str]
    samples: Sequence[Sample] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    floor: str | None = None

    @property
    def total(self) -> int:
        """Batches of the stream."""
        return max((history.total for history in self.histories), default=0)

    @property
    def started(self) -> list[ContestantHistory]:
        """The contestants that have something to show."""
        return [history for history in self.histories if history.batches]

    @property
    def complete(self) -> bool:
        """Whether every contestant saw the whole stream."""
        return all(history.batches >= history.total for history in self.histories)

    @property
    def window(self) -> int:
        """Batches that an accuracy curve averages over."""
        return max(1, self.total // 25)


def history_of(run: bench.Run, key: str, label: str, details: bool = True) -> ContestantHistory:
    """What a run holds so far; without `details` only its accuracy and what its policy alone measures."""
    steps = run.steps
    batches = run.batches
    nothing, unknown = np.zeros((batches, 0), np.int64), np.full(batches, np.nan)
    # Every run has the concentration; it is shown beside a threshold only.
    concentrated = details and bool(np.isfinite(steps["threshold"]).any())
    measures = run.measures
    return ContestantHistory(
        key=key,
        label=label,
        total=max(run.total, batches),
        correct=steps["correct"].astype(np.float64),
        count=steps["images"].astype(np.float64),
        predicted=steps["predicted"].astype(np.int64) if details else nothing,
        labels=steps["labels"].astype(np.int64) if details else nothing,
        domains=bench.dominant_domains(run),
        reset_fraction=run.reset_fraction,
        concentration=steps["concentration"] if concentrated else unknown,
        threshold=steps["threshold"] if concentrated else unknown,
        seconds=run.seconds if details else unknown,
        measures=measures,
        measurements={name: steps[name] for name in measures},
        reliability=run.reliability,
    )
