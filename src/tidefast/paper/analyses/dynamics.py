"""Concentration where one corruption ends and the next begins, and the resets that this causes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run, dominant_domains
from tidefast.paper import figure, naming
from tidefast.paper.analysis import Analysis, Finding, frame, registry
from tidefast.paper.domain_order import ABRUPT, NEAR, Boundary, Dynamics, dynamics, starts
from tidefast.paper.scale import Setting
from tidefast.report.sheet import Cell, Row, Sheet, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONG = 20
"""Batches of a domain on average; where they are fewer, there is nothing between the boundaries to compare with."""
SHOWN = 3
"""At most so many runs are drawn, and have their boundaries in the table."""
LISTED = 30
"""At most so many boundaries of a run are drawn and listed."""
_MARKS = {"rise": ("^", figure.GREEN), "decline": ("v", figure.PINK)}
_RULE = (
    f"Change: mean concentration of the {NEAR} batches from a boundary on minus that of the {NEAR} before. Abrupt: "
    f"beyond {ABRUPT:g} standard deviations of such changes within domains. A reset follows if it comes after one of "
    f"the first {NEAR} batches."
)


@registry.register("dynamics")
class Dynamic(Analysis):
    """Do abrupt domain changes move concentration, and set off resets?"""

    title = "Concentration along a stream of distinct corruptions: abrupt changes at their boundaries, and resets"
    paper = ("figure dynamics",)

    def experiments(self, setting: Setting) -> list[Experiment]:
        contestants = (("ETA", "ASR"), ("ROID", "ASR"), ("ETA", "never"))
        return [setting.experiment(setting.cin_c(), method, policy) for method, policy in contestants]

    def accepts(self, run: Run) -> bool:
        count = len(starts(dominant_domains(run)))
        return count > 0 and run.batches >= LONG * (count + 1) and bool(np.isfinite(run.steps["concentration"]).any())

    def evaluate(self, runs: list[Run]) -> Finding:
        named = dict(zip(naming.names([run.experiment for run in runs]), runs, strict=True))
        by_name = {name: dynamics(run) for name, run in named.items()}
        chosen = naming.featured([*named], SHOWN)
        summary = Sheet(
            "dynamics",
            "Concentration and resets at the boundaries of domains" + naming.where(runs),
            "run",
            (
                "boundaries",
                "rises",
                "resets after rises",
                "declines",
                "resets after declines",
                "resets near, %",
                "elsewhere, %",
            ),
            tuple(Row(name, _summary(course)) for name, course in by_name.items()),
            (_RULE, f"Near: batches followed by a reset, of the first {NEAR} of each domain but the first."),
        )
        listed = Sheet(
            "dynamics-boundaries",
            "Each boundary",
            "run: from, to",
            ("batch", "change of concentration", "abrupt", f"reset within {NEAR}"),
            tuple(
                Row(f"{name}: {boundary.before}, {boundary.after}", _cells(boundary), name)
                for name in chosen
                for boundary in by_name[name].boundaries[:LISTED]
            ),
        )
        return Finding(
            {"boundaries": _boundaries(by_name), "batches": _batches({name: named[name] for name in chosen})},
            (summary, listed),
            lambda: _draw({name: (named[name], by_name[name]) for name in chosen}),
            tuple(remark for name in chosen for remark in _remarks(name, by_name[name])),
        )


def _summary(course: Dynamics) -> tuple[Cell, ...]:
    declines, rises = course.of("decline"), course.of("rise")
    return (
        number(len(course.boundaries), 0),
        number(len(rises), 0),
        number(sum(each.reset for each in rises), 0),
        number(len(declines), 0),
        number(sum(each.reset for each in declines), 0),
        number(100 * course.near_rate),
        number(100 * course.far_rate),
    )


def _cells(boundary: Boundary) -> tuple[Cell, ...]:
    told = "yes" if boundary.reset else "no"
    return (
        number(boundary.batch, 0),
        number(boundary.change, 3, signed=True),
        Cell(boundary.kind, boundary.kind) if boundary.kind else Cell(),
        Cell(told, told),
    )


def _boundaries(by_name: Mapping[str, Dynamics]) -> dict[str, list[Any]]:
    rows = [
        (name, boundary.batch, boundary.before, boundary.after, boundary.change, boundary.kind, int(boundary.reset))
        for name, each in by_name.items()
        for boundary in each.boundaries
    ]
    return frame(("run", "batch", "from", "to", "change", "abrupt", "reset"), rows)


def _batches(runs: Mapping[str, Run]) -> dict[str, list[Any]]:
    return {
        "run": [name for name, run in runs.items() for _ in range(run.batches)],
        "batch": [at for run in runs.values() for at in range(run.batches)],
        "domain": [domain for run in runs.values() for domain in dominant_domains(run)],
        **{
            key: [float(value) for run in runs.values() for value in run.steps[key]]
            for key in ("concentration", "threshold", "reset_fraction")
        },
    }


def _remarks(name: str, course: Dynamics) -> list[str]:
    declines, rises = course.of("decline"), course.of("rise")
    remarks = [
        f"{name}: concentration changes abruptly at {len(declines) + len(rises)} of {len(course.boundaries)} "
        f"boundaries, {len(declines)} declines and {len(rises)} rises."
    ]
    if not (course.near_rate or course.far_rate):
        return remarks
    after_rises, after_declines = (sum(each.reset for each in group) for group in (rises, declines))
    if rises or declines:
        remarks.append(
            f"{name}: within {NEAR} batches a reset follows {after_rises} of {len(rises)} abrupt rises and "
            f"{after_declines} of {len(declines)} abrupt declines."
        )
    if rises:
        holds = "holds" if after_rises > len(rises) / 2 else "does not hold"
        remarks.append(f"{name}: that abrupt rises often set off a reset {holds} here.")
    remarks.append(
        f"{name}: a reset comes after {100 * course.near_rate:.1f} % of the first {NEAR} batches of domains and "
        f"{100 * course.far_rate:.1f} % of the others."
    )
    return remarks


def _draw(by_name: Mapping[str, tuple[Run, Dynamics]]) -> Figure:
    around = 1.1  # inches for the names of the domains above, and the legend below
    drawn, axes = figure.panels(len(by_name), 1, height=1.25 + around / len(by_name), sharex=True)
    for axis, (name, (run, course)) in zip(axes[:, 0], by_name.items(), strict=True):
        _draw_run(axis, run, course)
        axis.set_ylabel(f"{name}\nconcentration $C_t$", fontsize=7)
    first, (run, course) = axes[0, 0], next(iter(by_name.values()))
    _name_domains(first, run, course)
    axes[-1, 0].set_xlabel("batch")
    handles = {line.get_label(): line for axis in axes[:, 0] for line in axis.lines if line.get_label()[0] != "_"}
    drawn.legend(handles=[*handles.values()], loc="outside lower center", ncols=len(handles))
    return drawn


def _end(run: Run, course: Dynamics) -> int:
    return course.boundaries[LISTED].batch if len(course.boundaries) > LISTED else run.batches


def _draw_run(axis: Axes, run: Run, course: Dynamics) -> None:
    end = _end(run, course)
    values, threshold = run.steps["concentration"][:end], run.steps["threshold"][:end]
    axis.plot(values, color=figure.BLUE, linewidth=0.8, label="concentration")
    axis.set_xlim(0, end)
    low, high = axis.get_ylim()
    # Room for the marks. The threshold begins far above after each reset, and may leave the panel.
    axis.set_ylim(low - 0.15 * (high - low), high + 0.35 * (high - low))
    if np.isfinite(threshold).any():
        axis.plot(threshold, color=figure.INK, linewidth=0.7, label="threshold of ASR")
    shown = [each for each in course.boundaries if each.batch < end]
    for at, each in enumerate(shown):
        label = "_" if at else "boundary"
        axis.axvline(each.batch - 0.5, color=figure.GREY, linestyle="--", linewidth=0.7, label=label)
    resets = [t + 0.5 for t in run.resets if t < end]
    over: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "linestyle": "none", "clip_on": False}
    if len(resets):
        axis.plot(resets, np.full(len(resets), 0.04), marker="|", color=figure.RED, markersize=5, label="reset", **over)
    for kind, (marker, colour) in _MARKS.items():
        at_kind = [each.batch - 0.5 for each in shown if each.kind == kind]
        if at_kind:
            height = np.full(len(at_kind), 0.95)
            axis.plot(at_kind, height, marker=marker, color=colour, markersize=4.5, label=f"abrupt {kind}", **over)
    axis.grid(visible=False)


def _name_domains(axis: Axes, run: Run, course: Dynamics) -> None:
    """The names of the domains along the upper edge."""
    end = _end(run, course)
    edges = [0, *(each.batch for each in course.boundaries if each.batch < end), end]
    domains = dominant_domains(run)
    names = axis.secondary_xaxis("top")
    names.set_xticks([(low + high) / 2 for low, high in itertools.pairwise(edges)])
    names.set_xticklabels(
        [domains[low].replace("_", " ") for low in edges[:-1]],
        rotation=40,
        ha="left",
        rotation_mode="anchor",
        fontsize=6,
    )
    names.tick_params(length=0, pad=1)
    names.spines["top"].set_visible(False)
