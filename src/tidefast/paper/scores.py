"""Accuracies of whole runs, repetitions averaged: by base method, reset policy and stream, and as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidefast.bench.results import Run
from tidefast.paper import analysis, figure, paired, source_line
from tidefast.paper.figure import line_styles
from tidefast.paper.naming import NO_RESET, NamedRun, with_names
from tidefast.paper.source_line import LABEL, NAME, Sources
from tidefast.paper.study import accuracy
from tidefast.report.sheet import Cell, Row, Sheet, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Score:
    """The accuracy in percent of one contestant on one stream: the mean of its repetitions."""

    named_runs: tuple[NamedRun, ...]
    values: tuple[float, ...]

    @property
    def first(self) -> NamedRun:
        """One of the runs."""
        return self.named_runs[0]

    @property
    def runs(self) -> list[Run]:
        """All of the runs."""
        return [named_run.run for named_run in self.named_runs]

    @property
    def mean(self) -> float:
        """The mean of the repetitions."""
        return float(np.mean(self.values))

    @property
    def std(self) -> float | None:
        """Their standard deviation; None of a single run."""
        return float(np.std(self.values)) if len(self.values) > 1 else None


def scores(runs: Sequence[Run]) -> list[Score]:
    """Every contestant on every stream, in the order of `with_names`; seeds and the like are averaged over."""
    groups: dict[tuple[str, str], list[NamedRun]] = {}
    for named_run in with_names(runs):
        groups.setdefault((named_run.label, named_run.stream), []).append(named_run)
    return [Score(tuple(same), tuple(accuracy(named_run.run) for named_run in same)) for same in groups.values()]


def sheet(
    key: str, title: str, all_scores: Sequence[Score], notes: Sequence[str] = (), sources: Sources | None = None
) -> Sheet:
    """Contestants in rows, the source model first, streams in columns."""
    streams = list(dict.fromkeys(score.first.stream for score in all_scores))
    at = {(score.first.label, score.first.stream): score for score in all_scores}
    heights = [_source(all_scores, stream, sources or {}) for stream in streams]
    rows = [Row(NAME, tuple(map(number, heights)), NAME)] if any(height is not None for height in heights) else []
    for label, base in {score.first.label: score.first.base for score in all_scores}.items():
        met = [at.get((label, stream)) for stream in streams]
        cells = (Cell() if score is None else number(score.mean, std=score.std) for score in met)
        rows.append(Row(label, tuple(cells), base))
    repeated = max(len(score.values) for score in all_scores)
    notes = [*notes, *([f"± standard deviation over repetitions, at most {repeated}"] if repeated > 1 else [])]
    return Sheet(key, title, "contestant", tuple(streams), tuple(rows), tuple(notes))


def frame(all_scores: Sequence[Score]) -> dict[str, list[Any]]:
    """Every run."""
    runs = [pair for score in all_scores for pair in zip(score.named_runs, score.values, strict=True)]
    rows = [(named_run.label, named_run.stream, named_run.place, value) for named_run, value in runs]
    return analysis.frame(("contestant", "stream", "place", "accuracy"), rows)


def bars(
    axes: Axes,
    all_scores: Sequence[Score],
    streams: Sequence[str],
    names: Sequence[str],
    sources: Sources | None = None,
) -> None:
    """A bar for each score, in groups by stream; `streams`, `names`: all streams and reset policies of the figure.

    A line across each group is the source model; error bars are of the difference to the method without resets. Where
    panels share their axis it must begin at 0 once all of them are drawn, for from then on it does not grow.
    """
    stroke = line_styles(names)
    present = [name for name in names if any(score.first.add_on == name for score in all_scores)]
    width = 0.8 / max(1, len(present))
    for at, name in enumerate(present):
        own = [score for score in all_scores if score.first.add_on == name]
        places = [streams.index(score.first.stream) - 0.4 + (at + 0.5) * width for score in own]
        drawn = axes.bar(
            places,
            [score.mean for score in own],
            0.92 * width,
            yerr=np.transpose([_reach(score, all_scores) for score in own]),
            color=stroke[name]["color"],
            error_kw={"lw": 0.7},
            label=name,
        )
        axes.bar_label(drawn, fmt="%.1f", fontsize=5.5, padding=1.5)
    for at, stream in enumerate(streams):
        if (height := _source(all_scores, stream, sources or {})) is not None:
            axes.plot([at - 0.46, at + 0.46], [height] * 2, color=figure.GREY, ls="--", lw=1.0, label=LABEL)
    axes.set_xticks(range(len(streams)), list(streams))
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.2)


def _source(all_scores: Sequence[Score], stream: str, sources: Sources) -> float | None:
    here = next((score for score in all_scores if score.first.stream == stream), None)
    return None if here is None else source_line.level(here.runs, sources)


def _reach(score: Score, all_scores: Sequence[Score]) -> tuple[float, float]:
    for plain in all_scores:
        alike = (plain.first.base, plain.first.stream) == (score.first.base, score.first.stream)
        if alike and plain.first.add_on == NO_RESET:
            return (0.0, 0.0) if plain is score else paired.reach(paired.over(score.runs, plain.runs))
    return 0.0, 0.0


def add_ons(all_scores: Sequence[Score]) -> list[str]:
    """The reset policies there are, in order."""
    return list(dict.fromkeys(score.first.add_on for score in all_scores))


def size(panels: int, bars_in_each: int) -> float:
    """The width in inches of a row of panels with so many bars: a page, or what a few need."""
    return min(figure.PAGE, panels * (0.6 + 0.28 * bars_in_each))
