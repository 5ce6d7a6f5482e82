"""Domains that come in segments of random length: accuracy per visit above the order of the domains."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import domain_order, figure, paired, source_line, visits
from tidefast.paper.analysis import Analysis, Finding, frame, registry
from tidefast.paper.domain_order import Segment
from tidefast.paper.scale import Setting
from tidefast.paper.source_line import Sources
from tidefast.paper.study import asr_of, plain
from tidefast.paper.visits import Course, Panels
from tidefast.report.sheet import Row, Sheet, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STREAM = "cdc"
VISITS = (1, 5, 10, 15, 20)
DELTAS = (1.0, 10.0)
COLUMNS, ROWS = 3, 3
"""At most so many schedules and so many base methods are drawn."""


@registry.register("schedules")
class Schedules(Analysis):
    """Does an adaptive reset cope with domains that come and go at random?"""

    title = "Accuracy per visit under continual dynamic change, with the order of the domains"
    paper = ("figure inc+cdc", "table 22", "table 23")

    def experiments(self, setting: Setting) -> list[Experiment]:
        wanted = (
            setting.experiment(setting.cdc(delta), base, reset)
            for delta in DELTAS
            for base in ("ETA", "ROID")
            for reset in ("never", *setting.rdumbs, "ASR")
        )
        return source_line.with_source(setting, wanted)

    def accepts(self, run: Run) -> bool:
        return (
            visits.recurs(run) and run.experiment.stream.name.startswith(STREAM) and plain(run.experiment, "periodic")
        )

    def evaluate(self, runs: list[Run]) -> Finding:
        runs, sources = source_line.apart(runs)
        by_panel = visits.courses(runs)
        orders = {met[0].named_run.place: domain_order.segments(met[0].named_run.run) for met in by_panel.values()}
        sheets = (
            visits.sheet("schedules", "Accuracy per visit, %", by_panel, VISITS, lambda course: course.accuracy),
            _durations(orders),
        )
        rows = [
            (place, at, segment.domain, segment.visit + 1, segment.batches)
            for place, parts in orders.items()
            for at, segment in enumerate(parts)
        ]
        segments = frame(("place", "segment", "domain", "visit", "batches"), rows)
        frames = {"visits": visits.frame(by_panel), "segments": segments}
        remarks = [remark for met in by_panel.values() for remark in _remarks(met)] + _on_durations(orders)
        remarks += visits.caveats(_shown(by_panel))
        if len(_shown(by_panel)) < len(by_panel):
            remarks.append(f"The figure shows at most {ROWS} methods and {COLUMNS} schedules; the tables have all.")
        return Finding(frames, sheets, lambda: _draw(by_panel, orders, sources), (*remarks,))


def _durations(orders: Mapping[str, Sequence[Segment]]) -> Sheet:
    rows = [
        Row(place, (number(float(len(parts)), 0), *(number(value) for value in domain_order.lengths(parts))))
        for place, parts in orders.items()
    ]
    columns = ("segments", "per visit", "longest of a visit", "shortest of a visit")
    note = "A segment is batches in a row of one domain; lengths in batches, means over visits."
    return Sheet("segments", "The order of the domains as drawn", "schedule", columns, (*rows,), (note,))


def _remarks(met: Sequence[Course]) -> list[str]:
    """ASR against RDumb for one method at one place: the mean, the worst fall, and the way from first to last."""
    remarks = []
    for asr in (course for course in met if asr_of(course.named_run.run.experiment)):
        rise, chance = asr.accuracy[-1] - asr.accuracy[0], 2 * float(np.hypot(asr.error[0], asr.error[-1]))
        way = "undecided" if abs(rise) <= chance else "improves" if rise > 0 else "falls"
        remarks.append(
            f"{asr.named_run.title}, from the first visit to the last: {asr.accuracy[0]:.1f} to "
            f"{asr.accuracy[-1]:.1f}, {way} (two standard errors are {chance:.1f})."
        )
        for other in (course for course in met if course is not asr):
            difference = paired.over([asr.named_run.run], [other.named_run.run])
            remarks.append(
                f"{asr.named_run.title}, over {other.named_run.add_on} in the mean: {paired.told(difference)}; its "
                f"worst fall from one visit to the next is {_fall(asr):.1f} points, there {_fall(other):.1f}."
            )
    return remarks


def _fall(course: Course) -> float:
    """The worst loss from one visit to the next, in points; 0 when there is none."""
    steps = course.accuracy[:-1] - course.accuracy[1:]
    return max(0.0, float(steps.max()))


def _on_durations(orders: Mapping[str, Sequence[Segment]]) -> list[str]:
    """How the schedules differ: in the number of segments, or in how even they are."""
    measured = {place: domain_order.lengths(parts) for place, parts in orders.items()}
    return [
        f"{place}: {count:.1f} segments a visit, of {shortest:.1f} to {longest:.1f} batches."
        for place, (count, longest, shortest) in measured.items()
    ]


def _shown(by_panel: Panels) -> Panels:
    """What is drawn: the first methods on the first schedules."""
    bases = list(dict.fromkeys(base for base, _ in by_panel))[:ROWS]
    places = list(dict.fromkeys(place for _, place in by_panel))[:COLUMNS]
    return {(base, place): met for (base, place), met in by_panel.items() if base in bases and place in places}


def _draw(everything: Panels, orders: Mapping[str, Sequence[Segment]], sources: Sources) -> Figure:
    by_panel = _shown(everything)
    bases, places = (list(dict.fromkeys(panel[at] for panel in by_panel)) for at in (0, 1))
    names = visits.add_ons(by_panel)
    domains = list(dict.fromkeys(segment.domain for place in places for segment in orders[place]))
    heights = [*([1.0] * len(bases)), 0.14]
    drawn, axes = figure.panels(
        len(bases) + 1,
        len(places),
        width=figure.PAGE if len(places) > 1 else figure.COLUMN * 1.3,
        height=2.0 * sum(heights) / len(heights) + 0.25,
        sharex="col",
        sharey="row",
        height_ratios=heights,
    )
    for column, place in enumerate(places):
        for row, base in enumerate(bases):
            axis = axes[row][column]
            visits.plot(axis, by_panel.get((base, place), []), lambda course: course.accuracy, names, sources)
            axis.set_title(textwrap.fill(f"{base}, {place}", 44))
            axis.tick_params(labelbottom=False)
        domain_order.strip(axes[-1][column], orders[place], domains)
        axes[-1][column].set_xlabel("visit")
    for row in axes[:-1]:
        row[0].set_ylabel("accuracy, %")
    axes[-1][0].set_ylabel("domain", rotation=0, ha="right", va="center")
    figure.legend(drawn, axes[:-1].ravel())
    domain_order.legend(drawn, domains)
    return drawn
