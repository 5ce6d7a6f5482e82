"""Accuracy as the hyperparameters of ASR move away from their defaults."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidefast.bench.experiment import Experiment
from tidefast.bench.metrics import PairedDifference
from tidefast.bench.results import Run
from tidefast.paper import figure, paired, parameter_curves, source_line
from tidefast.paper.analysis import Analysis, Finding, registry
from tidefast.paper.figure import marked
from tidefast.paper.parameter_curves import ParameterCurve
from tidefast.paper.scale import LEVELS, Setting
from tidefast.paper.source_line import Sources
from tidefast.paper.study import asr_of
from tidefast.report.sheet import Cell, Row, Sheet, difference
from tidefast.resets import ASR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIED = {"alpha0": 0.95, "mu0": 1.0, "lambda0": math.inf, "r0": 1.0, "lambda_r": math.inf}
"""The hyperparameters, and how large each may become; from alpha0 = 1 on, every batch would be reset."""
SYMBOLS = {
    "alpha0": r"$\alpha_0$",
    "mu0": r"$\mu_0$",
    "lambda0": r"$\lambda_0$",
    "r0": r"$r_0$",
    "lambda_r": r"$\lambda_r$",
}
TIMES = {"mini": (0.5, 2.0), "full": (0.5, 0.8, 1.25, 2.0)}
"""By scale, what the defaults are multiplied by."""
NEGLIGIBLE = 1.0
"""Points of accuracy; the paper calls its fluctuations negligible and gives no number."""

CurvesBySetting = dict[str, list[ParameterCurve]]
"""By hyperparameter, a line for each stream."""


@registry.register("sensitivity")
class Sensitivity(Analysis):
    """How much do the hyperparameters matter?"""

    title = "Accuracy as hyperparameters of ASR move away from their defaults"
    paper = ("figure hyper",)

    def experiments(self, setting: Setting) -> list[Experiment]:
        base = "ETA" if setting.name == "mini" else "ROID"  # ROID hardly needs ASR on the bundled benchmark
        default = ASR()
        resets = ["ASR"] + [
            f"asr:{name}={min(round(getattr(default, name) * times, 6), largest):g}"
            for name, largest in VARIED.items()
            for times in TIMES[setting.name]
        ]
        return source_line.with_source(
            setting, (setting.experiment(setting.ccc(level), base, reset) for level in LEVELS for reset in resets)
        )

    def accepts(self, run: Run) -> bool:
        policy = asr_of(run.experiment)
        return source_line.is_source(run) or (
            policy is not None
            and dataclasses.replace(policy, **{name: getattr(ASR(), name) for name in VARIED}) == ASR()
        )

    def evaluate(self, runs: list[Run]) -> Finding:
        runs, sources = source_line.apart(runs)
        by_setting = {
            name: parameter_curves.lines(runs, _value(name), parameter_curves.without(name)) for name in VARIED
        }
        by_setting = {name: lines for name, lines in by_setting.items() if lines}
        parameter_curves.need(
            [line for lines in by_setting.values() for line in lines],
            "some of ASR with several values of alpha0, mu0, lambda0, r0 or lambda_r",
        )
        labels = list(dict.fromkeys(line.label for lines in by_setting.values() for line in lines))
        rows = []
        for name, lines in by_setting.items():
            by = {line.label: _largest(name, line) for line in lines}
            rows.append(Row(name, tuple(_cell(*by[label]) if label in by else Cell() for label in labels)))
        sheet = Sheet(
            "sensitivity",
            "Largest change of accuracy in points when one hyperparameter is changed",
            "hyperparameter",
            tuple(labels),
            tuple(rows),
            ("At the value in round brackets. " + parameter_curves.INTERVALS,),
        )
        frame = parameter_curves.stacked(
            {"hyperparameter": [name] * len(line.points), **line.frame("value")}
            for name, lines in by_setting.items()
            for line in lines
        )
        remarks = (*_remarks(by_setting, labels), paired.WHISKERS.format("the default"), *_heights(by_setting, sources))
        return Finding({"runs": frame}, (sheet,), lambda: _draw(by_setting, labels), remarks)


def _value(name: str) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        policy = asr_of(run.experiment)
        return None if policy is None else float(getattr(policy, name))

    return value


def _default(name: str, line: ParameterCurve) -> float:
    """The value that others are compared with: the default, or what is nearest to it."""
    usual = float(getattr(ASR(), name))
    return min(line.numbers, key=lambda at: abs(math.log(at / usual)) if at > 0 else math.inf)


def _largest(name: str, line: ParameterCurve) -> tuple[float, PairedDifference]:
    """Where accuracy changes the most, and by how much."""
    base = _default(name, line)
    changes = {at: line.change(at, base) for at in line.numbers if at != base}
    at = max(changes, key=lambda value: abs(changes[value].points))
    return at, changes[at]


def _cell(at: float, change: PairedDifference) -> Cell:
    cell = difference(change, 2)
    return dataclasses.replace(cell, text=f"{cell.text} ({at:g})")


def _remarks(by_setting: CurvesBySetting, labels: Sequence[str]) -> list[str]:
    remarks = []
    for label in labels:
        of = {name: _largest(name, line) for name, lines in by_setting.items() for line in lines if line.label == label}
        worst = max(of, key=lambda name: abs(of[name][1].points))
        at, change = of[worst]
        changes = [change for _, change in of.values()]
        small = sum(map(parameter_curves.within(NEGLIGIBLE), changes))
        large = sum(change.low > NEGLIGIBLE or change.high < -NEGLIGIBLE for change in changes)
        holds = "undecided"
        if large or small == len(of):
            holds = "unlike in the paper, some matter" if large else "as in the paper, none matters much"
        remarks.append(
            f"{label}: the largest change is {paired.told(change, 2)}, of {worst} = {at:g}; {small} of {len(of)} "
            f"hyperparameters change accuracy by less than {NEGLIGIBLE:g} point, {large} by more, the others are "
            f"undecided: {holds}."
        )
    return remarks


def _heights(by_setting: CurvesBySetting, sources: Sources) -> list[str]:
    """Where the source model is, far below what a narrow axis shows."""
    lines = {line.label: line for lines in by_setting.values() for line in lines}
    found = {name: source_line.level(next(iter(line.points.values())), sources) for name, line in lines.items()}
    told = ", ".join(f"{name} {height:.1f}" for name, height in found.items() if height is not None)
    return [f"The source model has {told} %; the axis does not begin at 0, for the changes are small."] if told else []


def _draw(by_setting: CurvesBySetting, labels: Sequence[str]) -> Figure:
    drawn, axes = figure.panels(
        1, len(by_setting), width=min(figure.PAGE, 0.5 + 1.6 * len(by_setting)), height=2.2, sharey=True
    )
    looks = marked(labels)
    for axis, (name, lines) in zip(axes[0], by_setting.items(), strict=True):
        default = float(getattr(ASR(), name))
        axis.axvline(default, color=figure.GREY, lw=0.8, ls=":", label="default")
        for line in lines:
            look = looks[line.label]
            whiskers = line.reach(_default(name, line))
            axis.errorbar(line.numbers, line.accuracies, yerr=whiskers, elinewidth=0.7, label=line.label, **look)
        axis.set_xscale("log")
        ticks = sorted({number for line in lines for number in line.numbers})
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks], rotation=60)
        axis.minorticks_off()
        axis.set_title(SYMBOLS[name])
    axes[0][0].set_ylabel("accuracy, %")
    figure.legend(drawn, axes[0])
    return drawn
