"""Runs that come back to the same domains: accuracy visit by visit, and what was kept between visits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.metrics import Floats
from tidefast.bench.results import Run
from tidefast.paper import analysis, figure, source_line
from tidefast.paper.figure import marked
from tidefast.paper.naming import NamedRun, panels, with_names
from tidefast.paper.source_line import Sources
from tidefast.report.sheet import Cell, Row, Sheet, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 6
"""At most so many rows or columns of panels are drawn."""


@dataclass(frozen=True, eq=False)
class Course:
    """A contestant's way through the visits, in percent and in points."""

    named_run: NamedRun
    accuracy: Floats
    recovery: Floats
    images: int
    """In a visit."""

    @property
    def error(self) -> Floats:
        """One standard error of the accuracy of each visit, in points, by the number of its images."""
        shares = self.accuracy / 100
        errors: Floats = 100 * np.sqrt(shares * (1 - shares) / self.images)
        return errors

    @property
    def mean(self) -> float:
        """The mean accuracy of the visits."""
        return float(self.accuracy.mean())


Panels = dict[tuple[str, str], list[Course]]


def recurs(run: Run) -> bool:
    """Whether a finished run came to its domains more than once."""
    return len((run.result or {}).get("visits") or ()) > 1


def courses(runs: Sequence[Run], telling: Callable[[Run], bool] = lambda run: True) -> Panels:
    """The runs by base method and place: of a large set, only where a `telling` run is; all when there is none."""
    by_panel = panels(with_names(runs))
    chosen = {panel: met for panel, met in by_panel.items() if any(telling(named_run.run) for named_run in met)}
    return {panel: [_course(named_run) for named_run in met] for panel, met in (chosen or by_panel).items()}


def marks(by_panel: Panels, wanted: Sequence[int]) -> list[int]:
    """The visits that a table shows: those wanted, or the last where there are fewer."""
    last = max(len(course.accuracy) for met in by_panel.values() for course in met)
    return sorted({min(visit, last) for visit in wanted})


def sheet(
    key: str,
    title: str,
    by_panel: Panels,
    wanted: Sequence[int],
    values: Callable[[Course], Floats],
    *,
    decimals: int = 1,
    signed: bool = False,
    first: Mapping[str, Callable[[Course], Cell]] | None = None,
    notes: Sequence[str] = (),
) -> Sheet:
    """A row for each course: its values at some visits, and their mean over all; `first` are columns before them."""
    shown = marks(by_panel, wanted)
    rows = []
    for (base, place), met in by_panel.items():
        for course in met:
            line = values(course)
            cells = [number(float(line[at - 1]) if at <= len(line) else None, decimals, signed=signed) for at in shown]
            before = [make(course) for make in (first or {}).values()]
            mean = number(float(line.mean()), decimals, signed=signed)
            rows.append(Row(course.named_run.title, (*before, *cells, mean), f"{base}, {place}"))
    columns = (*(first or {}), *(f"visit {at}" for at in shown), "mean")
    return Sheet(key, title, "run", columns, tuple(rows), tuple(notes))


def frame(by_panel: Panels) -> dict[str, list[Any]]:
    """Every visit of every course."""
    rows = [
        (course.named_run.label, course.named_run.place, at, float(accuracy), float(recovery))
        for met in by_panel.values()
        for course in met
        for at, (accuracy, recovery) in enumerate(zip(course.accuracy, course.recovery, strict=True), start=1)
    ]
    return analysis.frame(("contestant", "place", "visit", "accuracy", "recovery"), rows)


def add_ons(by_panel: Panels) -> list[str]:
    """The reset policies there are, in order."""
    return list(dict.fromkeys(course.named_run.add_on for met in by_panel.values() for course in met))


def plot(
    axes: Axes,
    met: Sequence[Course],
    values: Callable[[Course], Floats],
    names: Sequence[str],
    sources: Sources | None = None,
) -> None:
    """A line for each course; `names`: all reset policies of the figure, which decide how each looks.

    Accuracies have a band of one standard error: the axis is narrow, and most of what moves on it is chance. The line
    across is the source model, over all visits.
    """
    stroke = marked(names)
    for course in met:
        line, look = values(course), stroke[course.named_run.add_on]
        visit = range(1, len(line) + 1)
        axes.plot(visit, line, label=course.named_run.add_on, **look)
        if line is course.accuracy:
            axes.fill_between(
                visit, line - course.error, line + course.error, color=look["color"], alpha=0.12, linewidth=0
            )
    if not met:
        axes.text(0.5, 0.5, "no runs", color=figure.GREY, ha="center", transform=axes.transAxes)
        return
    source_line.draw(axes, source_line.level([met[0].named_run.run], sources or {}))
    last = max(len(course.accuracy) for course in met)
    step = next((step for step in (1, 2, 5, 10, 20, 50, 100) if last / step <= 8), 200)
    axes.set_xticks(sorted({1, *range(step, last + 1, step)}))


def shown(by_panel: Panels) -> Panels:
    """The panels that are drawn."""
    return dict(list(by_panel.items())[:SHOWN])


def caveats(by_panel: Panels) -> list[str]:
    """What a reader must know: how far chance goes at one visit, and whether the figure shows everything."""
    every = [course for met in by_panel.values() for course in met]
    fewest = min(every, key=lambda course: course.images)
    share = fewest.mean / 100
    error = 200 * math.sqrt(share * (1 - share) / fewest.images)
    remarks = [
        f"A visit has {fewest.images:,} images: two standard errors of its accuracy are {error:.1f} points. Bands in "
        "the figure are one; its axis does not begin at 0, for otherwise nothing could be told apart."
    ]
    if len(by_panel) > SHOWN:
        remarks.append(f"The figure shows the first {SHOWN} of {len(by_panel)} groups; the tables have all.")
    return remarks


def _course(named_run: NamedRun) -> Course:
    spans = named_run.run.spans
    table = metrics.visit_table(spans["domain"], spans["visit"], spans["images"], spans["correct"])
    images = int(spans["images"].sum()) // len(table)
    return Course(named_run, 100 * metrics.by_visit(table), 100 * metrics.knowledge_recovery(table), images)
