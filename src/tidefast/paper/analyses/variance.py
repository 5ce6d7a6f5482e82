"""What logits of very unequal lengths do to ASR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import figure, paired, parameter_curves, source_line
from tidefast.paper.analysis import Analysis, Finding, registry
from tidefast.paper.figure import marked
from tidefast.paper.parameter_curves import ParameterCurve
from tidefast.paper.scale import Setting
from tidefast.paper.source_line import Sources
from tidefast.paper.study import asr_of
from tidefast.report.sheet import Cell, Row, Sheet, difference, number
from tidefast.resets.asr.measures import SoftmaxOfMean, Spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTORS = (1, 2, 4, 8, 16)
PUBLISHED = {"easy": 0.3, "hard": 1.0}
"""The paper's bounds on the change of accuracy in points, by level, for more than 15 times the variance."""


@registry.register("variance")
class Variance(Analysis):
    """Does ASR still work when a few samples with large logits dominate the mean?"""

    title = "Accuracy of ASR as the lengths of logits vary more between the samples of a batch"
    paper = ("figure var_logit",)

    def experiments(self, setting: Setting) -> list[Experiment]:
        wanted = (
            setting.experiment(
                setting.ccc(level, speed=setting.speeds[0], seed=43),
                "ROID",
                "ASR" if factor == 1 else f"asr:measure=spread:factor={factor}",
            )
            for level in ("easy", "hard")
            for factor in FACTORS
        )
        return source_line.with_source(setting, wanted)

    def accepts(self, run: Run) -> bool:
        return source_line.is_source(run) or _factor(run) is not None

    def evaluate(self, runs: list[Run]) -> Finding:
        runs, sources = source_line.apart(runs)
        curves = parameter_curves.lines(runs, _factor, parameter_curves.without("measure"))
        parameter_curves.need(
            curves, "some with asr:measure=spread:factor=F, of several factors, factor 1 being plain ASR"
        )
        sheet = Sheet(
            "variance",
            "Accuracy in % as the variance of logit lengths within a batch is multiplied",
            "stream and factor",
            ("accuracy", "change to the smallest factor, points", "resets"),
            tuple(row for line in curves for row in _rows(line)),
            (parameter_curves.INTERVALS,),
        )
        remarks = (*map(_remark, curves), paired.WHISKERS.format("the smallest factor"))
        frame = parameter_curves.stacked(line.frame("factor") for line in curves)
        return Finding({"runs": frame}, (sheet,), lambda: _draw(curves, sources), remarks)


def _factor(run: Run) -> float | None:
    policy = asr_of(run.experiment)
    measure = policy.measure if policy else None
    return measure.factor if isinstance(measure, Spread) else 1.0 if measure == SoftmaxOfMean() else None


def _rows(line: ParameterCurve) -> list[Row]:
    smallest = line.numbers[0]
    return [
        Row(
            f"{line.label}, {at:g}",
            (
                number(share, 2),
                difference(line.change(at, smallest), 2) if at != smallest else Cell(),
                number(resets, 0),
            ),
            line.label,
        )
        for at, share, resets in zip(line.numbers, line.accuracies, line.resets, strict=True)
    ]


def _remark(line: ParameterCurve) -> str:
    smallest, *others = line.numbers
    changes = [line.change(at, smallest) for at in others]
    worst = max(changes, key=lambda change: abs(change.points))
    remark = (
        f"{line.label}: with up to {others[-1]:g} times the variance, the largest change of accuracy is "
        f"{paired.told(worst, 2)}"
    )
    bound = PUBLISHED.get(str(line.common.stream.options.get("level")))
    if bound is None:
        return f"{remark}."
    verdict = "holds" if all(map(parameter_curves.within(bound), changes)) else "is undecided"
    if any(change.low > bound or change.high < -bound for change in changes):
        verdict = "does not hold"
    return f"{remark}; the paper's bound of {bound:g} points {verdict}."


def _draw(curves: Sequence[ParameterCurve], sources: Sources) -> Figure:
    drawn, axes = figure.panels(1, 2, width=figure.PAGE, height=2.4)
    looks = marked([line.label for line in curves])
    for line in curves:
        look, whiskers = looks[line.label], line.reach(line.numbers[0])
        axes[0][0].errorbar(line.numbers, line.accuracies, yerr=whiskers, elinewidth=0.7, label=line.label, **look)
        height = source_line.level(line.points[line.numbers[0]], sources)
        if height is not None:
            label = f"{line.label}, {source_line.LABEL}"
            axes[0][0].axhline(height, color=look["color"], linestyle=":", linewidth=1.0, label=label)
        axes[0][1].plot(line.numbers, line.resets, **looks[line.label])
    for axis, label in zip(axes[0], ("accuracy, %", "resets"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({at for line in curves for at in line.numbers}))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.minorticks_off()
        axis.set_xlabel("variance of logit lengths, times")
        axis.set_ylabel(label)
        axis.set_ylim(0, 1.08 * axis.get_ylim()[1])
    axes[0][0].legend(loc="best")
    figure.letter(axes[0])
    return drawn
