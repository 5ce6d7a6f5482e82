"""The page of a set of runs: its tables, and for each stream and seed the accuracy of all contestants over time, and
what their policies measure beyond the standard measurements."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from tidefast import bench
from tidefast.report import curves, formats
from tidefast.report.arrangement import Arrangement, ColumnKey, ContestantKey, Entry, Repetition, patiently
from tidefast.report.data import ContestantHistory, ReportData, history_of
from tidefast.report.markup import Markup, element, join
from tidefast.report.page import RELIABILITY, document, section
from tidefast.report.sheet import Sheet

POINTS = 40_000
"""About so many points in all curves of the page together."""
FEWEST = 60

ColumnRepetition = tuple[ColumnKey, Repetition]


def render(title: str, arrangement: Arrangement, sheets: Sequence[Sheet]) -> str:
    """The page as text."""
    plots: curves.Plots = {}
    parts = _parts(arrangement)
    lines = sum(len(_entries(arrangement, part)) for part in parts)
    points = int(np.clip(POINTS // max(1, lines), FEWEST, curves.POINTS))
    figures = [_figure(arrangement, part, f"s{at}", points, plots) for at, part in enumerate(parts)]
    charts = section(
        "Accuracy over time",
        "Mean over a twenty-fifth of the stream around each batch. Dotted: chance. Under the curves, a stroke for each "
        f"reset. Point at a chart to read values; the buttons hide and show. Below, confidence: {RELIABILITY}",
        *figures,
    )
    return document(title, [], [*(section(sheet.title, "", formats.html(sheet)) for sheet in sheets), charts], plots)


def page_content(arrangement: Arrangement, part: ColumnRepetition, prefix: str = "") -> ReportData:
    """The runs on one stream with one seed; contestants keep their place, and so their colour, on all pages."""
    entries = _entries(arrangement, part)
    histories, classes = [], ["?"]
    for at, row in enumerate(arrangement.rows):
        key, label = f"{prefix}c{at}", arrangement.label(row)
        if row in entries:
            run, history = patiently(entries[row].folder, functools.partial(_told, key, label))
            classes = run.environment.get("classes") or classes
        else:
            history = ContestantHistory.empty(key, label, 0)
        histories.append(history)
    source = next((at for at, row in enumerate(arrangement.rows) if arrangement.source(row) == row), 0)
    return ReportData(_heading(arrangement, part), histories, f"{prefix}c{source}", [str(name) for name in classes])


def _figure(arrangement: Arrangement, part: ColumnRepetition, prefix: str, points: int, plots: curves.Plots) -> Markup:
    told = page_content(arrangement, part, prefix)
    content: list[Markup] = [curves.accuracy(told, plots, f"accuracy-{prefix}", points)] if told.started else []
    for panels in (curves.measurements(told, plots, points), curves.reliability(told, plots)):
        if panels:
            content.append(element("div", join(panels), class_="grid"))
    behind = [
        f"{history.label} {history.batches:,} of {history.total:,}"
        for history in told.histories
        if history.batches < history.total
    ]
    if behind:
        content.insert(0, element("p", f"Not finished; batches so far: {', '.join(behind)}.", class_="partial"))
    return element("details", element("summary", told.title), *content, open=prefix == "s0")


def _parts(arrangement: Arrangement) -> list[ColumnRepetition]:
    """Every stream with every seed that something ran on."""
    parts = {
        (column, repetition): None
        for column in arrangement.columns
        for row in arrangement.rows
        for repetition in sorted(arrangement.at(row, column))
    }
    return sorted(parts, key=lambda part: (arrangement.columns.index(part[0]), part[1]))


def _entries(arrangement: Arrangement, part: ColumnRepetition) -> dict[ContestantKey, Entry]:
    column, repetition = part
    cells = {row: arrangement.at(row, column).get(repetition) for row in arrangement.rows}
    return {row: entry for row, entry in cells.items() if entry is not None}


def _heading(arrangement: Arrangement, part: ColumnRepetition) -> str:
    column, (seed, *_) = part
    experiment = next(iter(_entries(arrangement, part).values())).experiment
    pooled = [
        f"{name} {value}"
        for name, value in experiment.stream.options.items()
        if name not in arrangement.stream(column).options
    ]
    return ", ".join([arrangement.heading(column), *pooled, f"seed {seed}"])


def _told(key: str, label: str, run: bench.Run) -> tuple[bench.Run, ContestantHistory]:
    return run, history_of(run, key, label, details=False)
