"""Accuracy on two time scales: over the whole stream in blocks, and a stretch of it in detail."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import figure, naming, paired, source_line
from tidefast.paper.analysis import Analysis, Finding, frame, registry
from tidefast.paper.contestants import MATCHED
from tidefast.paper.figure import line_styles
from tidefast.paper.scale import LEVELS, Setting
from tidefast.report.sheet import Cell, Row, Sheet, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FINE = 5
"""Batches that an accuracy at the fine scale averages over."""
SHOWN = 6
"""At most so many contestants are drawn."""
SHORTEST = 20
"""Batches that a run must have."""


@dataclass(frozen=True, eq=False)
class AccuracyCurve:
    """The accuracy of a contestant along its streams, their mean; shares from 0 to 1."""

    streams: frozenset[str]
    block: int
    blocks: metrics.Floats
    fine: metrics.Floats
    """At each batch the accuracy over the FINE batches around it."""
    chance: float
    """Standard deviation that `fine` would have if accuracy never changed, as batches have different images."""

    @property
    def fluctuation(self) -> float:
        """Standard deviation of `fine` within the blocks."""
        starts = np.arange(0, len(self.fine), self.block)
        squares = [np.var(self.fine[start : start + self.block]) for start in starts]
        return math.sqrt(float(np.mean(squares)))

    @property
    def unrest(self) -> float:
        """What is beyond chance of the fluctuation; variances add up."""
        return math.sqrt(max(0.0, self.fluctuation**2 - self.chance**2))


@registry.register("stability")
class Stability(Analysis):
    """Is accuracy steady, over the whole stream and from batch to batch?"""

    title = "Accuracy over the whole stream in blocks, and a stretch of it in detail"
    paper = ("figure stable",)

    def experiments(self, setting: Setting) -> list[Experiment]:
        policies = ("never", *setting.rdumbs, "ASR")
        return source_line.with_source(
            setting, [setting.experiment(setting.ccc(level), "ETA", policy) for level in LEVELS for policy in policies]
        )

    def accepts(self, run: Run) -> bool:
        return run.batches >= SHORTEST

    def evaluate(self, runs: list[Run]) -> Finding:
        pooled = naming.pooled(runs, streams=True)
        courses = {name: course(members) for name, members in pooled.items()}
        most = max((course.streams for course in courses.values()), key=len)
        comparable = {name: course for name, course in courses.items() if course.streams == most}
        chosen = {name: comparable[name] for name in naming.featured([*comparable], SHOWN)}
        notes = [
            f"Blocks of {', '.join(map(str, sorted({course.block for course in courses.values()})))} batches; "
            "accuracies are means over the streams. The last block may be shorter.",
            f"Fine: standard deviation of the accuracy over {FINE} batches within a block; beyond chance: without "
            "what it would be if accuracy never changed, as batches have different images.",
        ]
        if len(comparable) < len(courses):
            notes.append("Contestants with other streams are not comparable, and not drawn.")
        sheet = Sheet(
            "stability",
            "Stability over time" + naming.where(runs),
            "contestant",
            ("streams", "mean, %", "std of blocks", "worst block, %", "fine std", "beyond chance"),
            tuple(Row(name, _cells(course)) for name, course in courses.items()),
            (*notes,),
        )
        return Finding(
            {"blocks": _blocks(courses), "fine": _fine(courses)},
            (sheet,),
            lambda: _draw(chosen),
            (*_remarks(chosen, pooled),),
        )


def course(runs: list[Run]) -> AccuracyCurve:
    """The mean course of runs on several streams, as far as the shortest goes."""
    batches = min(run.batches for run in runs)
    block = metrics.block_length(batches)
    blocks = [metrics.windowed(run.steps["correct"][:batches], run.steps["images"][:batches], block) for run in runs]
    fine = [run.smooth_accuracy(FINE)[:batches] for run in runs]
    noise = [
        share * (1 - share) / (FINE * run.steps["images"][:batches]) for share, run in zip(fine, runs, strict=True)
    ]
    return AccuracyCurve(
        frozenset(f"{run.experiment.stream.spelled} {run.experiment.seed}" for run in runs),
        block,
        np.mean(blocks, axis=0),
        np.mean(fine, axis=0),
        math.sqrt(float(np.mean(noise)) / len(runs)),
    )


def stretch(batches: int) -> slice:
    """The stretch that is shown in detail: from the middle a fiftieth of the stream, but at least a hundred batches.

    >>> stretch(117_188), stretch(1000), stretch(60)
    (slice(58594, 60937, None), slice(500, 600, None), slice(30, 60, None))
    """
    start = batches // 2
    return slice(start, min(batches, start + max(100, batches // 50)))


def _cells(course: AccuracyCurve) -> tuple[Cell, ...]:
    return (
        number(len(course.streams), 0),
        number(100 * float(course.blocks.mean())),
        number(100 * float(course.blocks.std()), 2),
        number(100 * float(course.blocks.min())),
        number(100 * course.fluctuation, 2),
        number(100 * course.unrest, 2),
    )


def _blocks(courses: Mapping[str, AccuracyCurve]) -> dict[str, list[Any]]:
    rows = [(name, at * c.block, float(value)) for name, c in courses.items() for at, value in enumerate(c.blocks)]
    return frame(("contestant", "batch", "accuracy"), rows)


def _fine(courses: Mapping[str, AccuracyCurve]) -> dict[str, list[Any]]:
    parts = {name: stretch(len(course.fine)) for name, course in courses.items()}
    rows = [
        (name, at, float(courses[name].fine[at])) for name, part in parts.items() for at in range(part.start, part.stop)
    ]
    return frame(("contestant", "batch", "accuracy"), rows)


def _remarks(courses: Mapping[str, AccuracyCurve], runs: Mapping[str, list[Run]]) -> list[str]:
    """ASR against RDumb, for every method that has both."""
    remarks = []
    pairs: list[tuple[str, str]] = []
    for adaptive in courses:
        rdumbs = [adaptive.replace(" + ASR", f" + {name}") for name in ("RDumb", MATCHED)]
        pairs += [(adaptive, naive) for naive in rdumbs if naive != adaptive and naive in courses]
    for adaptive, naive in pairs:
        new, old = courses[adaptive], courses[naive]
        length = min(len(old.blocks), len(new.blocks))
        above = int((new.blocks[:length] > old.blocks[:length]).sum())
        remarks.append(
            f"{adaptive} over {naive}: {paired.told(paired.over(runs[adaptive], runs[naive]))}; it is above in {above} "
            f"of {length} blocks (in the paper throughout)."
        )
        ratio = new.unrest / old.unrest if old.unrest else math.nan
        verdict = "holds" if ratio < 0.9 else "does not hold" if ratio > 1.1 else "is within a tenth, undecided"
        remarks.append(
            f"Within blocks {adaptive} fluctuates by {100 * new.fluctuation:.1f} points ({100 * new.unrest:.1f} beyond "
            f"chance), {naive} by {100 * old.fluctuation:.1f} ({100 * old.unrest:.1f}): that ASR is steadier {verdict}."
        )
    return remarks


def _draw(courses: Mapping[str, AccuracyCurve]) -> Figure:
    drawn, axes = figure.panels(2, 1, width=figure.COLUMN, height=1.7)
    coarse, detail = axes[:, 0]
    looks = line_styles([*courses])
    end = max(len(course.fine) for course in courses.values())
    part = stretch(end)
    for name, course in courses.items():
        middles = (np.arange(len(course.blocks)) + 0.5) * course.block
        coarse.plot(middles, 100 * course.blocks, label=name, marker="o", markersize=2.0, **looks[name])
        fine = 100 * course.fine[part]
        detail.plot(part.start + np.arange(len(fine)), fine, **looks[name])
    coarse.axvspan(part.start, part.stop, color=figure.GREY, alpha=0.15, linewidth=0)
    lengths = ", ".join(map(str, sorted({course.block for course in courses.values()})))
    coarse.set(ylabel="accuracy, %", xlabel=f"batch (blocks of {lengths}; grey: b)", xlim=(0, end))
    detail.set(ylabel="accuracy, %", xlabel=f"batch (mean of {FINE})", xlim=(part.start, part.stop))
    figure.letter([coarse, detail])
    drawn.legend(loc="outside lower center", ncols=3 if len("".join(courses)) < 30 else 2)
    return drawn
