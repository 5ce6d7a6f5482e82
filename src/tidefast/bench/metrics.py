"""What is measured on a finished run: small functions of arrays, and `summary`, which calls them all.

Accuracies are shares from 0 to 1, and nan where there is nothing to measure. Batches are counted from 0. A reset "after
batch t" is one whose `reset_fraction` at t is above 0: batch t was still predicted by the model of before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidefast.core.validation import require_count

if TYPE_CHECKING:
    from tidefast.bench.results import Run

Floats: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.ArrayLike
Answers: TypeAlias = tuple[Numbers, Numbers]
"""How many images each batch has, and how many of them were answered right."""
Names: TypeAlias = Sequence[str] | npt.NDArray[np.object_]

NO_ANSWERS: Answers = ((), ())
AROUND = 10
"""Batches before and after a reset that its effect is measured on."""
BLOCK = 1000
"""Batches of a block in the curves and histograms of `summary`."""
SHIFT = 8
"""Batches by which pseudo-resets are later than resets: what is measured around them is chance."""
INDEPENDENT = 20
"""Batches that count as one when chance is estimated: neighbours are not independent."""
BLOCKS = 100
"""At most so many blocks of a stream are compared; those of a longer stream are longer."""
FEW = 6
"""With fewer streams their spread says too little: six of one sign are chance in 3 of 100 cases, five in 6."""
DRAWS = 2000
"""Of the bootstrap."""
MANY = 200
"""A summary names the accuracy of each domain up to so many."""
ACCURACIES = {"images": "accuracy", "domains": "domain_mean", "visits": "visit_mean"}
"""What an accuracy may be the mean over, and its name in a `summary`."""


def accuracy(correct: Numbers, images: Numbers) -> float:
    """Correct answers over images seen.

    >>> accuracy([3, 1], [4, 4])
    0.5
    """
    seen = float(np.sum(images))
    return float(np.sum(correct)) / seen if seen else math.nan


def batch_accuracy(correct: Numbers, images: Numbers) -> Floats:
    """The accuracy of each batch."""
    right, seen = np.asarray(correct, float), np.asarray(images, float)
    shares: Floats = np.divide(right, seen, out=np.full(len(seen), np.nan), where=seen > 0)
    return shares


def windowed(correct: Numbers, images: Numbers, batches: int) -> Floats:
    """The accuracy of each block of so many batches, one after the other; the last may be shorter.

    >>> windowed([1, 1, 0, 2, 4], [4, 4, 4, 4, 4], 2).tolist()
    [0.25, 0.25, 1.0]
    """
    require_count("batches of a block", batches)
    starts = np.arange(0, len(np.asarray(images)), batches)
    if not len(starts):
        return np.empty(0)
    right, seen = (np.add.reduceat(np.asarray(values, float), starts) for values in (correct, images))
    return batch_accuracy(right, seen)


def smooth_accuracy(correct: Numbers, images: Numbers, window: int) -> Floats:
    """At each batch, the accuracy over the `window` batches around it; fewer at the ends.

    >>> smooth_accuracy([0, 1, 2], [2, 2, 2], 3).tolist()
    [0.25, 0.5, 0.75]
    """
    right, seen = (np.concatenate([[0.0], np.cumsum(values)]) for values in (correct, images))
    at = np.arange(len(seen) - 1)
    low, high = np.maximum(at - window // 2, 0), np.minimum(at + (window + 1) // 2, len(at))
    smoothed: Floats = (right[high] - right[low]) / (seen[high] - seen[low])
    return smoothed


def block_length(batches: int) -> int:
    """Batches of a block in a figure: 1000 where a stream has twenty such, else a twentieth of it.

    >>> block_length(117_188), block_length(1000), block_length(7)
    (1000, 50, 1)
    """
    return BLOCK if batches >= 20 * BLOCK else max(1, batches // 20)


def first_quarter(batches: int) -> slice:
    """The first quarter of so many batches, at least one of them."""
    return slice(0, max(1, batches // 4))


def last_quarter(batches: int) -> slice:
    """The last quarter of so many batches, at least one of them.

    >>> first_quarter(10), last_quarter(10), last_quarter(2)
    (slice(0, 2, None), slice(8, 10, None), slice(1, 2, None))
    """
    return slice(max(0, batches - max(1, batches // 4)), batches)


def by_domain(domain: Names, images: Numbers, correct: Numbers) -> dict[str, float]:
    """The accuracy in each domain, over all its stretches, in the order of first sight.

    >>> by_domain(["fog", "snow", "fog"], [2, 4, 2], [1, 4, 2])
    {'fog': 0.75, 'snow': 1.0}
    """
    names, at = _codes(domain)
    right, seen = (np.bincount(at, np.asarray(values, float), len(names)) for values in (correct, images))
    return dict(zip(names, batch_accuracy(right, seen).tolist(), strict=True))


def domain_mean(domain: Names, images: Numbers, correct: Numbers) -> float:
    """The unweighted mean of the domains' accuracies.

    >>> domain_mean(["fog", "snow", "fog"], [2, 4, 2], [1, 4, 2])
    0.875
    """
    return _mean(np.array(list(by_domain(domain, images, correct).values())))


def visit_table(domain: Names, visit: Numbers, images: Numbers, correct: Numbers) -> Floats:
    """Accuracies [visits, domains], nan where a visit did not come to a domain."""
    names, at = _codes(domain)
    visits = np.asarray(visit, np.int64)
    height = int(visits.max()) + 1 if len(visits) else 0
    cells = visits * len(names) + at
    right, seen = (np.bincount(cells, np.asarray(values, float), height * len(names)) for values in (correct, images))
    return batch_accuracy(right, seen).reshape(height, len(names))


def by_visit(table: Floats) -> Floats:
    """The accuracy of each visit, the mean over its domains, from a `visit_table`.

    >>> by_visit(np.array([[0.25, 0.75], [0.5, np.nan]])).tolist()
    [0.5, 0.5]
    """
    return np.array([_mean(row) for row in table])


def knowledge_recovery(table: Floats) -> Floats:
    """For each visit of a `visit_table`, how far domains are above the best of their earlier visits; mean over domains.

    Below 0, something was forgotten. The first visit has 0; so has a visit that only comes to new domains.

    >>> knowledge_recovery(np.array([[0.25, 0.5], [0.75, 0.5], [0.5, 0.5]])).tolist()
    [0.0, 0.25, -0.125]
    """
    gains = np.zeros(len(table))
    for at in range(1, len(table)):
        best = np.fmax.reduce(table[:at], axis=0)
        known = ~np.isnan(best) & ~np.isnan(table[at])
        gains[at] = float((table[at] - best)[known].mean()) if known.any() else 0.0
    return gains


def collapsed(accuracy: float, source: float) -> bool:
    """Whether a run is below the unadapted model over the whole of the same stream: what "collapse" means everywhere.

    >>> collapsed(0.20, source=0.25), collapsed(0.25, source=0.25)
    (True, False)
    """
    return accuracy < source


def reset_batches(fraction: Numbers) -> Counts:
    """The batches after which there was a reset, from the share of layers that was reset after each.

    >>> reset_batches([0.0, 0.5, float("nan"), 1.0]).tolist()
    [1, 3]
    """
    return np.flatnonzero(np.nan_to_num(np.asarray(fraction, float)) > 0)


@dataclass(frozen=True, eq=False)
class ResetEffects:
    """What resets did. One entry for each reset that has a batch after it."""

    change: Floats
    """Mean accuracy of the ten batches after, minus that of the ten before."""
    delay: Floats
    """Batches until the best accuracy of the ten before was reached again; nan unless the change is negative."""

    @property
    def detrimental_share(self) -> float:
        """The share of resets after which accuracy was lower."""
        return _mean((self.change < 0).astype(float))

    @property
    def beneficial_share(self) -> float:
        """The share of resets after which accuracy was higher."""
        return _mean((self.change > 0).astype(float))

    @property
    def detrimental_mean(self) -> float:
        """The mean change by the resets that did harm; negative."""
        return _mean(self.change[self.change < 0])

    @property
    def beneficial_mean(self) -> float:
        """The mean change by the resets that did good."""
        return _mean(self.change[self.change > 0])

    @property
    def recovery_delay(self) -> float:
        """The mean delay of the resets that did harm."""
        return _mean(self.delay)


def reset_effects(accuracy: Numbers, resets: Numbers) -> ResetEffects:
    """The effect of the resets after the batches `resets`, given the accuracy of each batch.

    Ten batches before and after, or as many as there are to the neighbouring resets and the ends of the stream. A delay
    ends at the next reset, or with the stream, if accuracy has not come back by then.

    >>> effects = reset_effects([0.5] * 10 + [0.25, 0.25, 0.5, 0.5], [9])
    >>> effects.change.tolist(), effects.delay.tolist()
    ([-0.125], [3.0])
    """
    values, at = np.asarray(accuracy, float), np.asarray(resets, np.int64)
    last = len(values) - 1
    changes, delays = [], []
    edges = [-1, *at.tolist(), last]
    for before, t, after in zip(edges, edges[1:], edges[2:], strict=False):
        if t >= last:
            continue
        old = values[max(before, t - AROUND) + 1 : t + 1]
        new = values[t + 1 : after + 1]
        change = _mean(new[:AROUND]) - _mean(old)
        back = np.flatnonzero(new >= np.nanmax(old))
        changes.append(change)
        delays.append(math.nan if not change < 0 else float(back[0] + 1) if len(back) else float(after - t))
    return ResetEffects(np.array(changes, float), np.array(delays, float))


def batches_per_reset(batches: int, resets: int) -> float:
    """The mean gap between resets; nan without any.

    >>> batches_per_reset(3000, 100)
    30.0
    """
    return batches / resets if resets else math.nan


def pseudo_resets(resets: Numbers, batches: int) -> Counts:
    """Resets that never were, each a few batches after one: the baseline of what is said about resets.

    >>> pseudo_resets([10, 95], 100).tolist()
    [18]
    """
    later = np.asarray(resets, np.int64) + SHIFT
    return later[later < batches]


@dataclass(frozen=True)
class PairedDifference:
    """By how many points one contestant is above another on the same streams, with the interval of 95 %."""

    points: float
    low: float = math.nan
    high: float = math.nan
    streams: int = 1

    @property
    def verdict(self) -> str:
        """`above`, `below`, or `undecided` when the interval holds 0, or when there is none.

        >>> PairedDifference(1.4, 0.8, 2.0).verdict, PairedDifference(1.4, -0.2, 3.0).verdict
        ('above', 'undecided')
        """
        return "above" if self.low > 0 else "below" if self.high < 0 else "undecided"


@dataclass(frozen=True, eq=False)
class StreamPair:
    """Two contestants on one stream with one seed."""

    points: float
    """The difference of their accuracies in percent."""
    blocks: Floats
    """The same on each block of batches, of the same images; empty where that is not known."""

    @classmethod
    def of(cls, points: float, own: Answers, other: Answers) -> StreamPair:
        """From the difference, and what each answered: in blocks of 20 batches or more, if the images are the same.

        >>> StreamPair.of(50.0, ([4] * 40, [2] * 20 + [4] * 20), ([4] * 40, [1] * 40)).blocks.tolist()
        [25.0, 75.0]
        """
        images, length = np.asarray(own[0], float), max(INDEPENDENT, len(np.asarray(own[0])) // BLOCKS)
        if len(images) < 2 * length or not np.array_equal(images, np.asarray(other[0], float)):
            return cls(points, np.empty(0))
        gain = np.asarray(own[1], float) - np.asarray(other[1], float)
        starts = np.arange(0, len(images) - length + 1, length)
        return cls(points, 100 * np.add.reduceat(gain, starts) / np.add.reduceat(images, starts))

    @property
    def error(self) -> float:
        """The standard error of the difference, from the blocks; nan of less than two."""
        return float(self.blocks.std(ddof=1) / math.sqrt(len(self.blocks))) if len(self.blocks) > 1 else math.nan


def paired_difference(levels: Sequence[Sequence[StreamPair]]) -> PairedDifference:
    """The mean over levels of the mean over their streams, and its bootstrap interval; the same for the same numbers.

    Streams are drawn anew within each level, and the blocks of each stream: with many streams it is their spread that
    counts, with one the blocks, and then the interval is about that stream only. Few streams without blocks have none.

    >>> few = [StreamPair(2.0, np.array([1.0, 3.0] * 10)), StreamPair(1.0, np.array([0.5, 1.5] * 10))]
    >>> difference = paired_difference([few])
    >>> difference.points, difference.streams, 0.5 < difference.low < 1.0, 2.0 < difference.high < 3.0
    (1.5, 2, True, True)
    """
    chosen = [pairs for pairs in levels if pairs]
    streams = sum(map(len, chosen))
    if not chosen:
        return PairedDifference(math.nan, streams=0)
    points = float(np.mean([np.mean([pair.points for pair in pairs]) for pairs in chosen]))
    if any(len(pairs) < FEW and min(len(pair.blocks) for pair in pairs) < 2 for pairs in chosen):
        return PairedDifference(points, streams=streams)
    rng = np.random.default_rng(0)
    drawn = np.mean([_drawn(pairs, rng) for pairs in chosen], axis=0)
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return PairedDifference(points, low, high, streams)


def _drawn(pairs: Sequence[StreamPair], rng: np.random.Generator) -> Floats:
    """The mean over streams, `DRAWS` times: with other streams of these, and in each with other blocks of its own."""
    values = np.empty((len(pairs), DRAWS))
    for row, pair in zip(values, pairs, strict=True):
        noise, count = pair.blocks - pair.blocks.mean() if len(pair.blocks) else np.zeros(1), max(1, len(pair.blocks))
        row[:] = pair.points + noise[rng.integers(count, size=(DRAWS, count))].mean(axis=1)
    mean: Floats = values[rng.integers(len(pairs), size=(len(pairs), DRAWS)), np.arange(DRAWS)].mean(axis=0)
    return mean


def correlation(concentration: Numbers, accuracy: Numbers) -> float:
    """Pearson's r of concentration and batch accuracy, over the batches that have both; nan when it is undefined.

    High concentration goes with low accuracy, so r is expected to be negative; the paper prints its magnitude.

    >>> correlation([-2.0, -1.5, -1.0, float("nan")], [0.5, 0.25, 0.0, 0.9])
    -1.0
    """
    pairs = np.stack([np.asarray(concentration, float), np.asarray(accuracy, float)])
    x, y = pairs[:, np.isfinite(pairs).all(axis=0)]
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip((x @ y) / math.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def prediction_histogram(
    predicted: npt.NDArray[np.integer[Any]], block: int = BLOCK, classes: int = 10, seed: int = 0
) -> tuple[Counts, Counts]:
    """Which classes were chosen, and how often each was predicted, [blocks, classes], from counts [batches, classes].

    The classes are drawn once, by the seed. A model that predicts few classes only empties nearly all of them.

    >>> chosen, counts = prediction_histogram(np.ones((5, 3), int), block=2, classes=2)
    >>> chosen.tolist(), counts.tolist()
    ([1, 2], [[2, 2], [2, 2], [1, 1]])
    """
    require_count("block", block)
    available = predicted.shape[1]
    chosen = np.sort(np.random.default_rng(seed).choice(available, min(classes, available), replace=False))
    starts = np.arange(0, len(predicted), block)
    if not len(starts):
        return chosen, np.empty((0, len(chosen)), np.int64)
    return chosen, np.add.reduceat(predicted[:, chosen].astype(np.int64), starts, axis=0)


def effective_classes(counts: npt.NDArray[np.integer[Any]]) -> float:
    """How many classes predictions [batches, classes] are spread over: exp of their entropy.

    >>> effective_classes(np.array([[5, 5, 0], [5, 5, 0]]))
    2.0
    """
    totals = counts.sum(axis=0)
    shares = totals[totals > 0] / max(1, totals.sum())
    return round(float(np.exp(-(shares * np.log(shares)).sum())), 12) if len(shares) else math.nan


def seconds_per_batch(seconds: Numbers) -> float:
    """The median time of an adapting call: the first ones, which warm up, and hiccups do not count."""
    values = np.asarray(seconds, float)
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else math.nan


def summary(run: Run, *, predictions: bool = True) -> dict[str, Any]:
    """All of them for one run, as plain values for a JSON file: None where there is nothing to measure.

    Of a run that is not complete, so far. Without `predictions`, the histogram is left out, and the counts of each
    class in each batch, which are the bulk of a run, are not read.
    """
    steps, spans = run.steps, run.spans
    correct, images = steps["correct"], steps["images"]
    of_batches = run.batch_accuracy
    domains = by_domain(spans["domain"], spans["images"], spans["correct"])
    table = visit_table(spans["domain"], spans["visit"], spans["images"], spans["correct"])
    resets = run.resets
    effects = reset_effects(of_batches, resets)
    by_chance = reset_effects(of_batches, pseudo_resets(resets, len(of_batches)))
    r = correlation(steps["concentration"], of_batches)
    plain: dict[str, Any] = _plain(
        {
            "batches": len(images),
            "total": int(run.total),
            "images": int(np.sum(images)),
            "accuracy": run.accuracy,
            "domain_mean": _mean(np.array(list(domains.values()))),
            "domains": domains if len(domains) <= MANY else len(domains),
            "visits": by_visit(table) if len(table) > 1 else None,
            "visit_mean": _mean(by_visit(table)) if len(table) > 1 else None,
            "knowledge_recovery": knowledge_recovery(table) if len(table) > 1 else None,
            "blocks": {"batches": BLOCK, "accuracy": windowed(correct, images, BLOCK)},
            "resets": {
                "count": len(resets),
                "gap": batches_per_reset(len(images), len(resets)),
                "mean_depth": _mean(run.reset_fraction[resets]),
                "detrimental_share": effects.detrimental_share,
                "detrimental_by_chance": by_chance.detrimental_share,
                "detrimental_mean": effects.detrimental_mean,
                "beneficial_share": effects.beneficial_share,
                "beneficial_mean": effects.beneficial_mean,
                "recovery_delay": effects.recovery_delay,
            },
            "concentration_accuracy": {
                "r": r,
                "magnitude": abs(r),
                "sign": None if math.isnan(r) else int(np.sign(r)),
            },
            "calibration": None if (reliability := run.reliability) is None else reliability.summary(),
            "predictions": _histogram(run) if predictions else None,
            "nonfinite": int(np.sum(steps["nonfinite"])),
            "seconds_per_batch": seconds_per_batch(run.seconds),
        }
    )
    return plain


def accuracy_over(kind: str, summary: Mapping[str, Any]) -> float:
    """The accuracy over "images", "domains" or "visits", from a `summary`; nan when there is none.

    A run that came to its domains once has no mean over visits; that of its domains is the same.

    >>> accuracy_over("visits", {"accuracy": 0.5, "domain_mean": 0.625, "visit_mean": None})
    0.625
    """
    value = summary[ACCURACIES[kind]]
    if value is None and kind == "visits":
        value = summary["domain_mean"]
    return math.nan if value is None else float(value)


def _histogram(run: Run) -> dict[str, Any]:
    chosen, counts = prediction_histogram(run.steps["predicted"])
    return {"classes": chosen, "batches": BLOCK, "counts": counts}


def _codes(names: Names) -> tuple[list[str], Counts]:
    """The different names in the order of first sight, and for each entry the number of its name."""
    number: dict[str, int] = {}
    at = np.fromiter((number.setdefault(str(name), len(number)) for name in names), np.int64, len(names))
    return list(number), at


def _mean(values: Floats) -> float:
    """The mean of what is not nan; nan of nothing."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
