"""Accuracy against the size of batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import figure, naming, paired, parameter_curves, source_line
from tidefast.paper.analysis import Analysis, Finding, frame, registry
from tidefast.paper.figure import marked
from tidefast.paper.parameter_curves import ParameterCurve
from tidefast.paper.scale import LEVELS, Setting
from tidefast.paper.source_line import Sources
from tidefast.paper.study import accuracy
from tidefast.report.sheet import Row, Sheet, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTESTANTS = ("never", "RDumb", "ASR")
MEAN = "mean"
PANELS = 4
"""At most so many streams are drawn, their mean included."""

Grid = dict[str, dict[str, dict[float, list[Run]]]]
"""Runs by stream, contestant and size."""


@registry.register("batch-size")
class BatchSize(Analysis):
    """Do resets still help when batches are small?"""

    title = "Accuracy against the size of batches"
    paper = ("figure batch", "table 24")

    def experiments(self, setting: Setting) -> list[Experiment]:
        usual = (64, 32, 16, 8) if setting.name == "mini" else (128, 64, 32, 16)
        places = [
            setting.ccc(level, speed=setting.speeds[0], seed=43, batch=size)
            for level in LEVELS
            for size in (*usual, *((4, 2) if level == "easy" else ()))
        ]
        return source_line.with_source(
            setting, (setting.experiment(place, "ROID", reset) for place in places for reset in CONTESTANTS)
        )

    def evaluate(self, runs: list[Run]) -> Finding:
        runs, sources = source_line.apart(runs)
        curves = parameter_curves.lines(runs, _size, lambda experiment: {"batch": None, "steps": None})
        parameter_curves.need(curves, "some of one contestant on one stream with batches of several sizes")
        grid = _grid(curves)
        sizes = sorted({size for line in curves for size in line.numbers}, reverse=True)
        rows = tuple(
            Row(f"{contestant}, {stream}", tuple(number(_mean(by_size.get(size)), 2) for size in sizes), stream)
            for stream, contestants in grid.items()
            for contestant, by_size in contestants.items()
        )
        few = _fewer(curves)
        sheet = Sheet(
            "batch-size",
            "Accuracy in % by images per batch",
            "contestant",
            tuple(f"{size:g}" for size in sizes),
            rows,
            ("Neither intervals nor learning rates are scaled with the size.",)
            + ((f"Fewer images were seen in batches of {_listed(few)}.",) if few else ()),
        )
        cells = [
            (stream, contestant, size, _mean(members))
            for stream, contestants in grid.items()
            for contestant, by_size in contestants.items()
            for size, members in by_size.items()
        ]
        remarks = (*_remarks(grid, few), paired.WHISKERS.format("the first contestant at that size"))
        runs_of = frame(("stream", "contestant", "batch", "accuracy"), cells)
        return Finding({"runs": runs_of}, (sheet,), lambda: _draw(grid, few, sources), remarks)


def _size(run: Run) -> float:
    return float(run.experiment.batch or np.median(run.steps["images"]))


def _grid(curves: Sequence[ParameterCurve]) -> Grid:
    """Runs by stream, contestant and size; also those of all streams together, where all have the size."""
    commons = [line.common for line in curves]
    streams, contestants = naming.streams(commons), naming.contestants(commons)
    grid: Grid = {}
    for stream, contestant, line in zip(streams, contestants, curves, strict=True):
        grid.setdefault(stream, {})[contestant] = dict(line.points)
    if len(grid) > 1:
        together: dict[str, dict[float, list[Run]]] = {}
        for contestant in dict.fromkeys(contestants):
            all_of = [of.get(contestant, {}) for of in grid.values()]
            sizes = [size for size in all_of[0] if all(size in by_size for by_size in all_of)]
            if sizes:
                together[contestant] = {size: [run for by_size in all_of for run in by_size[size]] for size in sizes}
        if together:
            grid[MEAN] = together
    return grid


def _mean(runs: Sequence[Run] | None) -> float:
    """The mean over streams of their accuracies; every stream has as many."""
    return math.nan if runs is None else parameter_curves.mean(accuracy, runs)


def _fewer(curves: Sequence[ParameterCurve]) -> list[float]:
    """The sizes at which fewer images were seen than at others."""
    few = set()
    for line in curves:
        seen = {size: sum(int(run.steps["images"].sum()) for run in runs) for size, runs in line.points.items()}
        few |= {size for size, images in seen.items() if images < 0.9 * max(seen.values())}
    return sorted(few)


def _remarks(grid: Grid, few: Sequence[float]) -> list[str]:
    remarks = []
    for stream, contestants in grid.items():
        sizes = [
            size
            for size in next(iter(contestants.values()))
            if all(size in by_size for by_size in contestants.values())
        ]
        if len(contestants) < 2 or not sizes:
            continue
        for ours in (name for name in contestants if name.split(", ")[0].endswith("+ ASR")):
            verdicts: dict[str, list[float]] = {}
            for size in sizes:
                others = [of[size] for name, of in contestants.items() if name != ours]
                verdict = paired.over_all(paired.over(contestants[ours][size], other) for other in others)
                verdicts.setdefault(verdict, []).append(size)
            words = {"above": "above all others", "below": "below one of them", "undecided": "undecided"}
            told = "; ".join(f"{word} at {_listed(verdicts[key])}" for key, word in words.items() if key in verdicts)
            remarks.append(f"{stream}: by images per batch {ours} is {told}; in the paper it is best at every size.")
        like = [size for size in sizes if size not in few]
        if len(like) > 1:
            falls = {name: _mean(of[like[-1]]) - _mean(of[like[0]]) for name, of in contestants.items()}
            told = ", ".join(f"{name} {fall:.1f}" for name, fall in falls.items())
            remarks.append(f"{stream}: from {like[-1]:g} down to {like[0]:g} images accuracy falls by {told} points.")
    return remarks


def _listed(sizes: Sequence[float]) -> str:
    words = [f"{size:g}" for size in sorted(sizes)]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _draw(grid: Grid, few: Sequence[float], sources: Sources) -> Figure:
    shown = [
        *[stream for stream in grid if stream != MEAN][: PANELS - (MEAN in grid)],
        *([MEAN] if MEAN in grid else []),
    ]
    drawn, axes = figure.panels(1, len(shown), width=min(figure.PAGE, 0.6 + 1.9 * len(shown)), height=2.3, sharey=True)
    looks = marked(list(dict.fromkeys(name for stream in shown for name in grid[stream])))
    for axis, stream in zip(axes[0], shown, strict=True):
        for name, by_size in grid[stream].items():
            shares = {size: _mean(members) for size, members in by_size.items()}
            plain = next(iter(grid[stream].values()))
            against = [paired.over(by_size[size], plain.get(size, [])) for size in shares]
            reach = np.transpose([paired.reach(difference) for difference in against])
            axis.errorbar(list(shares), list(shares.values()), yerr=reach, elinewidth=0.7, label=name, **looks[name])
            hollow = [size for size in shares if size in few]
            look = looks[name] | {"linestyle": "none", "mfc": "white", "zorder": 3}
            axis.plot(hollow, [shares[size] for size in hollow], **look)
        most = max(grid[stream].values(), key=len)
        source_line.draw(axis, source_line.level(next(iter(most.values())), sources))
        axis.set_title(f"{stream} of the streams" if stream == MEAN else stream)
        _sizes(axis, sorted({size for by_size in grid[stream].values() for size in by_size}))
    axes[0][0].set_ylabel("accuracy, %")
    if few:
        axes[0][0].plot([], [], "o", mfc="white", mec=figure.GREY, label="fewer images seen")
    figure.legend(drawn, axes[0])
    return drawn


def _sizes(axes: Axes, sizes: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("images per batch")
