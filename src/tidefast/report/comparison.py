"""Tables of a set of runs: accuracy, gains, resets, visits, and what the machinery says."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tidefast.bench.calibration import BINS
from tidefast.bench.metrics import (
    INDEPENDENT,
    SHIFT,
    Floats,
    StreamPair,
    collapsed,
    paired_difference,
)
from tidefast.report.arrangement import Arrangement, ColumnKey, ContestantKey, Entry, Repetition
from tidefast.report.sheet import Cell, Row, Sheet, difference, number

VISITS = 20
"""At most so many visits get a column."""
ValuesByRepetition = Mapping[Repetition, float]


class Comparison:
    """The tables of one set of runs. `partial`: whether unfinished runs count; `accuracy`: see `Entry.accuracy`."""

    def __init__(self, arrangement: Arrangement, *, partial: bool = False, accuracy: str = "auto") -> None:
        self.arrangement = arrangement
        self.partial = partial
        self.kind = accuracy

    def sheets(self) -> list[Sheet]:
        """All tables that have something to say."""
        sheets = [self.accuracy(), self.gains(), self.calibration(), self.resets(), *self.visits(), self.signs()]
        return [sheet for sheet in sheets if sheet.rows]

    def values(
        self, row: ContestantKey, column: ColumnKey, of: Callable[[Entry], float] | None = None
    ) -> ValuesByRepetition:
        """What the runs of a cell measured, those that count; in percent, if `of` does not say otherwise."""
        measure = of or (lambda entry: entry.accuracy(self.kind))
        runs = self.arrangement.at(row, column).items()
        values = {key: measure(entry) for key, entry in runs if self.counts(entry)}
        return {key: value for key, value in values.items() if not math.isnan(value)}

    def counts(self, entry: Entry) -> bool:
        """Whether a run takes part in the means."""
        return entry.batches > 0 and (entry.complete or self.partial)

    def accuracy(self) -> Sheet:
        """Mean and standard deviation over the repetitions, for each contestant on each stream."""
        arrangement = self.arrangement
        wide = len(arrangement.columns) > 1
        counts = {len(self.values(row, column)) for row in arrangement.rows for column in arrangement.columns} - {0}
        rows = []
        for row in arrangement.rows:
            cells = [self._accuracy(row, column, len(counts) > 1) for column in arrangement.columns]
            if wide:
                cells.append(self._across(row))
            rows.append(Row(arrangement.label(row), tuple(cells), arrangement.group(row)))
        columns = [arrangement.heading(column) for column in arrangement.columns] + ["mean"] * wide
        notes = [self._meaning(counts), *self._unfinished(), *self._without_source()]
        return Sheet("accuracy", "Accuracy, %", "contestant", tuple(columns), tuple(_best(rows)), tuple(notes))

    def gains(self) -> Sheet:
        """Points above the unadapted model, and above the same method without resets and with RDumb, paired."""
        arrangement = self.arrangement
        intervals = dict.fromkeys(name for row in arrangement.rows for name in arrangement.periodic(row))
        names = ("source", "its base", *intervals)
        rows = []
        for row in arrangement.rows:
            fellows = {
                "source": arrangement.source(row),
                "its base": arrangement.base(row),
                **arrangement.periodic(row),
            }
            cells = [self._gain(row, fellows.get(name), column) for column in arrangement.columns for name in names]
            if any(cell.value is not None for cell in cells):
                rows.append(Row(arrangement.label(row), tuple(cells), arrangement.group(row)))
        columns = [f"{arrangement.heading(column)}, over {name}" for column in arrangement.columns for name in names]
        sheet = Sheet("gains", "Gain, points", "contestant", tuple(columns), tuple(rows)).compact()
        counts = {cell.count for row in sheet.rows for cell in row.cells if cell.count is not None}
        over = f"{counts.pop()} streams" if len(counts) == 1 else "n streams"
        if counts:
            shown = [tuple(_with_count(cell, cell.count) for cell in row.cells) for row in sheet.rows]
            rows = [replace(row, cells=cells) for row, cells in zip(sheet.rows, shown, strict=True)]
            sheet = replace(sheet, rows=tuple(rows))
        note = (
            "Mean difference of runs on the same stream with the same seed, and its bootstrap interval of 95 %, over "
            f"{over} and over blocks of {INDEPENDENT} batches or more within each; of one stream it is about that one."
        )
        return replace(sheet, notes=(note,))

    def calibration(self) -> Sheet:
        """What answers are worth as probabilities."""
        columns = ("stream", "calibration error, %", "log likelihood loss", "Brier score", "confidence, %")
        measures = (("ece", 100.0, 1), ("nll", 1.0, 3), ("brier", 1.0, 3), ("mean_confidence", 100.0, 1))
        notes = (
            "Calibration error (ECE): how far the probability of an answer and its accuracy are apart, over "
            f"{BINS} bins. Log likelihood loss: of the true class, in nats. Brier score: from 0 to 2. All: less is "
            "better. Confidence above the accuracy: too sure. Means over the runs of a cell.",
        )

        def cells(row: ContestantKey, column: ColumnKey) -> list[Cell]:
            if not self.values(row, column, functools.partial(_calibration, "ece", 1.0)):
                return []
            return [
                self._typical(row, column, functools.partial(_calibration, name, scale), decimals)
                for name, scale, decimals in measures
            ]

        return Sheet("calibration", "Calibration", "contestant", columns, tuple(self._by_stream(cells)), notes)

    def resets(self) -> Sheet:
        """How often, how deep and with what effect contestants were reset."""
        columns = (
            *("stream", "resets", "batches per reset", "depth, %", "detrimental, %", "by chance, %"),
            *("their change", "gain of others", "recovery delay"),
        )
        measures = (
            ("count", 1.0),
            ("gap", 1.0),
            ("mean_depth", 100.0),
            ("detrimental_share", 100.0),
            ("detrimental_by_chance", 100.0),
            ("detrimental_mean", 100.0),
            ("beneficial_mean", 100.0),
            ("recovery_delay", 1.0),
        )
        notes = (
            "Depth: share of the layers. Detrimental: the ten batches after the reset are less accurate than the ten "
            f"before; by chance: the same of pseudo-resets, {SHIFT} batches after each; changes in points. Recovery "
            "delay: batches until a detrimental reset is made up for, or until the next one. Means over the runs "
            "of a cell.",
        )

        def cells(row: ContestantKey, column: ColumnKey) -> list[Cell]:
            resets = self.values(row, column, lambda entry: float(entry.summary["resets"]["count"]))
            if not any(resets.values()):
                return []
            return [self._inner(row, column, "resets", name, scale) for name, scale in measures]

        return Sheet("resets", "Resets", "contestant", columns, tuple(self._by_stream(cells)), notes)

    def signs(self) -> Sheet:
        """What the machinery says: time, trouble, and how concentration goes with accuracy."""
        columns = ("stream", "ms / batch", "bad batches", "r", "|r|")
        notes = (
            "Median time of an adapting call. Bad batches: with values that are not finite, answered without adapting. "
            "r: correlation of concentration and batch accuracy, where the first was measured. Means over the runs.",
        )

        def cells(row: ContestantKey, column: ColumnKey) -> list[Cell]:
            if not self.values(row, column):
                return []
            return [
                self._typical(row, column, lambda entry: _number(entry.summary["seconds_per_batch"], 1000.0)),
                self._typical(row, column, lambda entry: float(entry.summary["nonfinite"]), decimals=0),
                self._inner(row, column, "concentration_accuracy", "r", 1.0, decimals=2),
                self._inner(row, column, "concentration_accuracy", "magnitude", 1.0, decimals=2),
            ]

        return Sheet("signs", "Time and diagnosis", "contestant", columns, tuple(self._by_stream(cells)), notes)

    def visits(self) -> list[Sheet]:
        """For each stream that is visited again, accuracy by visit."""
        return [sheet for column in self.arrangement.columns if (sheet := self._visits(column)) is not None]

    def _visits(self, column: ColumnKey) -> Sheet | None:
        arrangement = self.arrangement
        tables = {row: self._by_visit(row, column, "visits") for row in arrangement.rows}
        tables = {row: table for row, table in tables.items() if table.size}
        if not tables:
            return None
        visits = max(table.shape[1] for table in tables.values())
        shown = np.unique(np.linspace(0, visits - 1, min(visits, VISITS)).round().astype(int)).tolist()
        rows = []
        for row, table in tables.items():
            means = _nan_mean(table)
            recovered = _nan_mean(self._by_visit(row, column, "knowledge_recovery"))
            cells = [number(100 * means[at] if at < len(means) else None) for at in shown]
            cells.append(number(100 * float(np.nanmean(means)), std=100 * float(np.nanstd(means))))
            cells.append(number(100 * float(np.nanmean(recovered)), 2, signed=True))
            rows.append(Row(arrangement.label(row), tuple(cells), arrangement.group(row)))
        headings = (*(f"visit {at + 1}" for at in shown), "mean", "knowledge recovery")
        notes = (
            "A visit's accuracy is the mean over its domains; ± over visits. Knowledge recovery: points above the best "
            "earlier visit of the same domain, mean over all visits; below 0, something was forgotten.",
        )
        title = f"Accuracy by visit, %: {arrangement.heading(column)}"
        return Sheet("visits", title, "contestant", headings, tuple(rows), notes)

    def _by_visit(self, row: ContestantKey, column: ColumnKey, name: str) -> Floats:
        """[repetitions, visits] as far as all of them got."""
        entries = [entry for entry in self.arrangement.at(row, column).values() if self.counts(entry)]
        lists = [entry.summary[name] for entry in entries if entry.summary[name]]
        length = min(map(len, lists), default=0)
        return np.array(
            [[math.nan if value is None else value for value in visits[:length]] for visits in lists], float
        ).reshape(len(lists), length)

    def _accuracy(self, row: ContestantKey, column: ColumnKey, count_shown: bool) -> Cell:
        values = self.values(row, column)
        entries = self.arrangement.at(row, column).values()
        unfinished = [entry for entry in entries if not entry.complete]
        if not values:
            if not unfinished:
                return Cell()
            seen = sum(entry.batches for entry in unfinished) / max(1, sum(entry.total for entry in unfinished))
            return Cell(f"{seen:.0%} seen", partial=True)
        cell = _summarised(values, partial=bool(unfinished), collapsed=self._collapsed(row, column))
        return _with_count(cell, len(values)) if count_shown else cell

    def _across(self, row: ContestantKey) -> Cell:
        """The mean over streams, of contestants that ran on all of them."""
        means = [mean(self.values(row, column).values()) for column in self.arrangement.columns]
        source = self.arrangement.source(row)
        below = False
        if source is not None and source != row:
            below = collapsed(
                mean(means, strict=True),
                mean((mean(self.values(source, c).values()) for c in self.arrangement.columns), strict=True),
            )
        return number(mean(means, strict=True), collapsed=below)

    def _collapsed(self, row: ContestantKey, column: ColumnKey) -> bool:
        """Whether the mean lies below that of the source model on the same streams with the same seeds."""
        source = self.arrangement.source(row)
        pairs = [] if source is None or source == row else self._pairs(row, source, column)
        return bool(pairs) and collapsed(mean(own for own, _ in pairs), mean(other for _, other in pairs))

    def _gain(self, row: ContestantKey, fellow: ContestantKey | None, column: ColumnKey) -> Cell:
        pairs = {} if fellow is None or fellow == row else self._paired(row, fellow, column)
        if fellow is None or not pairs:
            return Cell()
        runs, fellow_runs = self.arrangement.at(row, column), self.arrangement.at(fellow, column)
        met = [
            StreamPair.of(own - other, runs[key].answers, fellow_runs[key].answers)
            for key, (own, other) in pairs.items()
        ]
        return difference(paired_difference([met]))

    def _pairs(self, row: ContestantKey, fellow: ContestantKey, column: ColumnKey) -> list[tuple[float, float]]:
        return list(self._paired(row, fellow, column).values())

    def _paired(
        self, row: ContestantKey, fellow: ContestantKey, column: ColumnKey
    ) -> dict[Repetition, tuple[float, float]]:
        """Accuracies of two contestants on the same batches."""
        own, other = self.arrangement.at(row, column), self.arrangement.at(fellow, column)
        mine, theirs = self.values(row, column), self.values(fellow, column)
        return {
            key: (mine[key], theirs[key]) for key in mine if key in theirs and own[key].batches == other[key].batches
        }

    def _inner(
        self, row: ContestantKey, column: ColumnKey, part: str, name: str, scale: float, decimals: int = 1
    ) -> Cell:
        return self._typical(row, column, lambda entry: _number(entry.summary[part][name], scale), decimals)

    def _typical(self, row: ContestantKey, column: ColumnKey, of: Callable[[Entry], float], decimals: int = 1) -> Cell:
        return number(mean(self.values(row, column, of).values()), decimals)

    def _by_stream(self, cells: Callable[[ContestantKey, ColumnKey], list[Cell]]) -> Iterable[Row]:
        """One row for each contestant on each stream, for which there are cells."""
        for column in self.arrangement.columns:
            heading = self.arrangement.heading(column)
            for row in self.arrangement.rows:
                if measured := cells(row, column):
                    yield Row(self.arrangement.label(row), (Cell(heading, heading), *measured), heading)

    def _meaning(self, counts: set[int]) -> str:
        kinds = {"images": "by image", "domains": "mean over domains", "visits": "mean over visits"}
        kind = "as is usual for each stream" if self.kind == "auto" else kinds[self.kind]
        over = f"{counts.copy().pop()} runs" if len(counts) == 1 else "n runs"
        spread = "one run each" if counts == {1} else f"mean and population standard deviation over {over}"
        pooled = "; ".join(f"{name} {', '.join(values)}" for name, values in self.arrangement.pooled().items())
        return f"Accuracy {kind}; {spread}" + (f"; streams of {pooled} in one column." if pooled else ".")

    def _unfinished(self) -> list[str]:
        entries = self.arrangement.entries
        unfinished, failed = sum(not e.complete for e in entries), sum(e.failed for e in entries)
        remarks = []
        if unfinished:
            how = (
                "they count with what they have" if self.partial else "left out of the means; --partial counts them in"
            )
            remarks.append(f"{unfinished} of {len(entries)} runs are not finished: {how}.")
        if failed:
            remarks.append(f"{failed} of them failed; error.txt in their folders says why.")
        return remarks

    def _without_source(self) -> list[str]:
        if any(self.arrangement.source(row) is None for row in self.arrangement.rows):
            return ["Without a run of the source model, nothing says whether a contestant collapsed."]
        return []


def _best(rows: Sequence[Row]) -> list[Row]:
    """The highest value of each column stands out, if there is more than one; unfinished runs do not compete."""
    tops = []
    for column in zip(*(row.cells for row in rows), strict=True):
        values = [cell.value for cell in column if isinstance(cell.value, float) and not cell.partial]
        tops.append(max(values) if len(values) > 1 else None)
    return [
        replace(
            row,
            cells=tuple(
                replace(cell, best=cell.value is not None and cell.value == top and not cell.partial)
                for cell, top in zip(row.cells, tops, strict=True)
            ),
        )
        for row in rows
    ]


def _with_count(cell: Cell, count: int | None) -> Cell:
    return cell if count is None else replace(cell, text=f"{cell.text} (n {count})")


def _summarised(values: ValuesByRepetition, *, collapsed: bool = False, partial: bool = False) -> Cell:
    numbers = np.array(list(values.values()))
    std = float(numbers.std()) if len(numbers) > 1 else None
    return number(float(numbers.mean()), std=std, count=len(numbers), collapsed=collapsed, partial=partial)


def mean(values: Iterable[float], strict: bool = False) -> float:
    """The mean; nan of nothing, and with `strict` also when one is nan."""
    numbers = np.array(list(values), float)
    if strict and np.isnan(numbers).any():
        return math.nan
    numbers = numbers[~np.isnan(numbers)]
    return float(numbers.mean()) if len(numbers) else math.nan


def _nan_mean(table: Floats) -> Floats:
    return np.array([mean(table[:, at]) for at in range(table.shape[1])])


def _calibration(name: str, scale: float, entry: Entry) -> float:
    """nan of a run of before it was measured."""
    return _number((entry.summary.get("calibration") or {}).get(name), scale)


def _number(value: float | None, scale: float) -> float:
    return math.nan if value is None else scale * value
