"""Resets that were not needed: accuracy against a threshold that is held, when a batch with all classes decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import figure, naming, paired, parameter_curves
from tidefast.paper.analysis import Analysis, Finding, registry
from tidefast.paper.figure import colour, marked
from tidefast.paper.parameter_curves import ParameterCurve
from tidefast.paper.scale import Setting
from tidefast.paper.study import accuracy, asr_of, reset_count
from tidefast.report.sheet import Cell, Row, Sheet, difference, number
from tidefast.resets import ASR
from tidefast.resets.asr.expressions import ConstantMomentum

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHAS = (0.85, 0.9, 0.94, 0.96, 0.975, 0.985)
"""The threshold is -ln(alpha0 x classes): the first is seldom reached, the last is below a fresh model's concentration.

They were chosen on the bundled benchmark. On others the thresholds are as far above the least concentration there is.
"""
REFERENCES = {"never": "no reset", "asr": "ASR, its own threshold"}
"""Other policies on the same stream, in words."""


@registry.register("false-positives")
class FalsePositives(Analysis):
    """Do resets that come too early do harm?"""

    title = "Accuracy and resets against a threshold that is held, when a batch with all classes decides"
    paper = ("figure fp_vs_tp",)

    def experiments(self, setting: Setting) -> list[Experiment]:
        held = [f"asr:measure=probe:images=64,momentum=constant:value=1.0,alpha0={alpha}" for alpha in ALPHAS]
        place = setting.cin_c(0, delta=0.1)
        learning = [setting.experiment(place, "ROID", reset) for reset in ("never", "ASR", *held)]
        return [setting.experiment(place, "Source"), *learning]

    def accepts(self, run: Run) -> bool:
        return _threshold(run) is not None or _reference(run) or _unadapted(run)

    def evaluate(self, runs: list[Run]) -> Finding:
        curves = parameter_curves.lines(runs, _threshold, parameter_curves.without("alpha0"))
        parameter_curves.need(curves, "some with asr:momentum=constant:value=1.0 and several values of alpha0")
        beside = [_beside(line, runs) for line in curves]
        rows = []
        for line, references in zip(curves, beside, strict=True):
            points = [(f"threshold {at:.3f}", members) for at, members in reversed(line.points.items())]
            for name, members in [*((REFERENCES[name], of) for name, of in references.items()), *points]:
                shares, counts = (
                    parameter_curves.mean(accuracy, members),
                    parameter_curves.mean(reset_count, members),
                )
                compared = "never" in references and members is not references["never"]
                gain = difference(paired.over(members, references["never"]), 2) if compared else Cell()
                rows.append(Row(f"{line.label}, {name}", (number(shares, 2), gain, number(counts, 0)), line.label))
        sources = [_source(line, runs) for line in curves]
        for line, source in zip(curves, sources, strict=True):
            if source:
                cells = (number(parameter_curves.mean(accuracy, source), 2), Cell(), Cell())
                rows.append(Row(f"{line.label}, source model", cells, line.label))
        sheet = Sheet(
            "false-positives",
            "Accuracy in % with a threshold that is held: the lower, the more resets",
            "run",
            ("accuracy", "change to no reset, points", "resets"),
            tuple(rows),
            (parameter_curves.INTERVALS,),
        )
        frame = parameter_curves.stacked(line.frame("threshold") for line in curves)
        remarks = [remark for line, others in zip(curves, beside, strict=True) for remark in _remarks(line, others)]
        remarks.append(paired.WHISKERS.format("no reset"))
        return Finding({"runs": frame}, (sheet,), lambda: _draw(curves, beside, sources), tuple(remarks))


def _threshold(run: Run) -> float | None:
    """The threshold of a run, where it is held."""
    policy = asr_of(run.experiment)
    if policy is None or policy.momentum != ConstantMomentum(1.0):
        return None
    known = run.steps["threshold"]
    known = known[np.isfinite(known)]
    return round(float(known[0]), 6) if len(known) else None


def _reference(run: Run) -> bool:
    return run.experiment.reset.name == "never" or asr_of(run.experiment) == ASR()


def _unadapted(run: Run) -> bool:
    return run.experiment.method.name == "source"


def _source(line: ParameterCurve, runs: Sequence[Run]) -> list[Run]:
    """The model that does not adapt, on the streams of a line."""
    places = {naming.place(run) for members in line.points.values() for run in members}
    return [run for run in runs if _unadapted(run) and naming.place(run) in places]


def _beside(line: ParameterCurve, runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The references of a line by the name of their policy: the same but for the policy, and what only that needs."""
    by_policy: dict[str, list[Run]] = {}
    for run in runs:
        if not _reference(run):
            continue
        like = dataclasses.replace(run.experiment, seed=0, reset=line.common.reset, source=line.common.source)
        if like.digest == line.common.digest:
            by_policy.setdefault(run.experiment.reset.name, []).append(run)
    return {name: by_policy[name] for name in REFERENCES if name in by_policy}


def _remarks(line: ParameterCurve, beside: dict[str, list[Run]]) -> list[str]:
    lowest, highest = line.numbers[0], line.numbers[-1]
    best = max(line.points, key=lambda at: parameter_curves.mean(accuracy, line.points[at]))
    counts = dict(zip(line.numbers, line.resets, strict=True))
    gain = line.change(best, highest)
    remarks = [
        f"{line.label}: lowering the threshold from {highest:.3f} to {lowest:.3f} raises the number of resets from "
        f"{counts[highest]:.0f} to {counts[lowest]:.0f}; accuracy is best at {best:.3f}, "
        f"with {counts[best]:.0f} resets."
    ]
    if best == highest:
        remarks.append(f"{line.label}: more resets do not help here, unlike in the paper.")
    else:
        verdict = ": more resets help, as in the paper" if gain.verdict == "above" else ""
        remarks.append(f"{line.label}: over the highest threshold that is {paired.told(gain, 2)}{verdict}.")
    if lowest != best:
        remarks.append(
            f"{line.label}: the lowest threshold over the best: {paired.told(line.change(lowest, best), 2)}."
        )
    for name, members in beside.items():
        against = paired.over(line.points[best], members)
        remarks.append(
            f"{line.label}: the best held threshold, picked after the fact, over {REFERENCES[name]}: "
            f"{paired.told(against, 2)}."
        )
    return remarks


def _draw(
    curves: Sequence[ParameterCurve], beside: Sequence[dict[str, list[Run]]], sources: Sequence[list[Run]]
) -> Figure:
    drawn, axes = figure.panels(1, 2, width=figure.PAGE, height=2.4)
    left, right = axes[0]
    looks = marked([line.label for line in curves])
    for at, (line, references) in enumerate(zip(curves, beside, strict=True)):
        style = looks[line.label]
        many = f"{line.label}: " if len(curves) > 1 else ""
        members = references.get("never", line.points[line.numbers[-1]])
        whiskers = np.transpose([paired.reach(paired.over(runs, members)) for runs in line.points.values()])
        label = f"{many}threshold held"
        left.errorbar(line.numbers, line.accuracies, yerr=whiskers, elinewidth=0.7, label=label, **style)
        right.plot(line.numbers, line.resets, **style)
        for name, members in references.items():
            drawing: dict[str, Any] = {
                "color": colour(REFERENCES[name]),
                "ls": ("--", ":", "-.")[at % 3],
                "lw": 1.0,
            }
            label = many + REFERENCES[name]
            left.axhline(parameter_curves.mean(accuracy, members), label=label, **drawing)
            if name == "asr":
                right.axhline(parameter_curves.mean(reset_count, members), **drawing)
        if sources[at]:
            level = parameter_curves.mean(accuracy, sources[at])
            left.axhline(level, label=f"{many}source model", color=figure.GREY, ls="-", lw=1.0)
    left.set_ylim(bottom=0)
    for axis in (left, right):
        axis.invert_xaxis()
        axis.set_xlabel("threshold of the concentration (lower to the right)")
    left.set_ylabel("accuracy, %")
    right.set_ylabel("resets")
    right.set_yscale("symlog", linthresh=1)
    right.set_ylim(0, 2 * right.get_ylim()[1])
    drawn.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.letter(axes[0])
    return drawn
