"""What each part of ASR costs in time and memory, and what it gives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidefast.bench.experiment import Experiment
from tidefast.bench.metrics import seconds_per_batch
from tidefast.bench.results import Run
from tidefast.core.specification import Specification
from tidefast.paper import figure, footprint, naming, paired, parameter_curves, published
from tidefast.paper.analysis import Analysis, Finding, registry
from tidefast.paper.figure import colour
from tidefast.paper.footprint import Needs
from tidefast.paper.scale import LEVELS, Setting
from tidefast.paper.study import accuracy
from tidefast.report.sheet import Row, Sheet, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONTESTANTS = (
    ("ETA", "never"),
    ("ROID", "never"),
    ("ROID", "RDumb"),
    ("ROID", "ASR"),
    ("ROID", "asr-no-recovery"),
    ("ROID", "asr-no-adjustment"),
)
MEASURED = 8
"""Up to so many contestants, all on bundled networks, take turns here; else times are those of the runs."""
SHOWN = 20
"""At most so many are drawn, those on ROID first."""
PAPER = {
    "asr": "ROID + ASR",
    "asr-no-recovery": "ROID + ASR w/o recovery",
    "asr-no-adjustment": "ROID + ASR w/o on-the-fly",
}
"""Rows of the paper's table 10 by reset policy."""


@dataclass(frozen=True)
class ContestantRuns:
    """One contestant with all its runs."""

    name: str
    experiment: Experiment
    """Of its first run."""
    runs: tuple[Run, ...]
    """On the streams that every contestant has."""
    ratio: float
    """Time of a step over that of the method without resets; nan where that is not known."""
    needs: Needs | None

    @property
    def accuracy(self) -> float:
        """The mean over its runs, in percent; nan when there is none."""
        return parameter_curves.mean(accuracy, self.runs) if self.runs else math.nan


@registry.register("cost")
class Cost(Analysis):
    """Is ASR worth what it costs?"""

    title = "Time, memory and accuracy of ASR and its parts"
    paper = ("table 10",)

    def experiments(self, setting: Setting) -> list[Experiment]:
        return [
            setting.experiment(setting.ccc(level), method, reset) for method, reset in CONTESTANTS for level in LEVELS
        ]

    def evaluate(self, runs: list[Run]) -> Finding:
        groups: dict[str, list[Run]] = {}
        for run in runs:
            groups.setdefault(_contestant(run.experiment), []).append(run)
        first = [members[0].experiment for members in groups.values()]
        here = len(first) <= MEASURED and all(experiment.model.name.startswith("bundled-") for experiment in first)
        needs: list[Needs | None] = [*footprint.weigh(first)] if here else [None] * len(first)
        shared = set.intersection(*({naming.place(run) for run in members} for members in groups.values()))
        entries = []
        for name, (key, members), need in zip(naming.names(_alike(first)), groups.items(), needs, strict=True):
            of = tuple(run for run in members if naming.place(run) in shared)
            ratio = need.ratio if need else _ratio(groups, key, members[0].experiment)
            entries.append(ContestantRuns(name, members[0].experiment, of, ratio, need))
        timed = (
            f"Times: the median of {footprint.ROUNDS} rounds in which all took turns, batches of {footprint.BATCH}."
            if here
            else "Times are those of the runs, which were not taken in turn: machines and their load may differ."
        )
        return Finding(
            {"contestants": _frame(entries)},
            (_sheet(entries, (timed, f"Accuracy: the mean over {len(shared)} streams that all have."), here),),
            lambda: _draw(entries),
            tuple(_remarks(entries)),
        )


def _alike(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Without what does not belong to a contestant."""
    return [
        dataclasses.replace(experiment, stream=naming.ANY, seed=0, steps=None, batch=None) for experiment in experiments
    ]


def _contestant(experiment: Experiment) -> str:
    return _alike([experiment])[0].digest


def _ratio(groups: dict[str, list[Run]], key: str, experiment: Experiment) -> float:
    """From the runs themselves, on the streams that the contestant and its plain method both have."""
    base = groups.get(_contestant(dataclasses.replace(experiment, reset=Specification("never"))), [])
    usual = {naming.place(run): seconds_per_batch(run.seconds) for run in base}
    ratios = [
        seconds_per_batch(run.seconds) / usual[naming.place(run)] for run in groups[key] if naming.place(run) in usual
    ]
    return sum(ratios) / len(ratios) if ratios else math.nan


def _frame(entries: Sequence[ContestantRuns]) -> dict[str, list[Any]]:
    return {
        "contestant": [entry.name for entry in entries],
        "trainable": [entry.needs.trainable if entry.needs else None for entry in entries],
        "numbers_held": [entry.needs.held if entry.needs else None for entry in entries],
        "network": [entry.needs.network if entry.needs else None for entry in entries],
        "time_ratio": [entry.ratio for entry in entries],
        "accuracy": [entry.accuracy for entry in entries],
    }


def _sheet(entries: Sequence[ContestantRuns], notes: tuple[str, ...], here: bool) -> Sheet:
    rows = []
    for entry in entries:
        need = entry.needs
        rows.append(
            Row(
                entry.name,
                (
                    number(need.trainable if need else None, 0),
                    number(need.held if need else None, 0),
                    number(_held(entry), 3),
                    number(entry.ratio, 2),
                    number(entry.accuracy, 2),
                ),
            )
        )
    columns = (
        *("trainable parameters", "numbers held", "numbers held / network"),
        *("time / method without resets", "accuracy, %"),
    )
    sheet = Sheet("cost", "Cost and accuracy", "contestant", columns, tuple(rows), notes)
    return sheet if here else sheet.compact()


def _remarks(entries: Sequence[ContestantRuns]) -> list[str]:
    remarks = []
    by = _roid(entries)
    for name, row in PAPER.items():
        if name in by and math.isfinite(by[name].ratio):
            remarks.append(
                f"{by[name].name}: a step takes {by[name].ratio:.2f} times as long as ROID's; "
                f"in the paper {_published(row) / _published('ROID'):.2f} times."
            )
    whole, less, plain = by.get("asr"), by.get("asr-no-adjustment"), by.get("never")
    if whole and less and whole.ratio > 1 and math.isfinite(less.ratio):
        part = (whole.ratio - less.ratio) / (whole.ratio - 1)
        remarks.append(
            f"On-the-fly adjustment, which asks the source model, is {100 * part:.0f} % of what ASR adds in time."
        )
    if whole and plain and whole.needs and plain.needs:
        extra = whole.needs.held - plain.needs.held
        remarks.append(
            f"ASR holds {extra / whole.needs.trainable:.1f} numbers more per trainable parameter, "
            f"{100 * extra / whole.needs.network:.2f} % of the network."
        )
    if whole and whole.runs:
        for name in ("asr-no-recovery", "asr-no-adjustment"):
            if name in by:
                change = paired.over(by[name].runs, whole.runs)
                remarks.append(
                    f"{by[name].name} over {whole.name}: {paired.told(change, 2)} points; in the paper it is worse."
                )
    return remarks


def _roid(entries: Sequence[ContestantRuns]) -> dict[str, ContestantRuns]:
    """ROID by reset policy; of several ROIDs, such as with two learning rates, the one with the most policies."""
    by_method: dict[str, dict[str, ContestantRuns]] = {}
    for entry in entries:
        if entry.experiment.method.name == "roid":
            plain = _contestant(dataclasses.replace(entry.experiment, reset=Specification("never")))
            by_method.setdefault(plain, {})[entry.experiment.reset.name] = entry
    return max(by_method.values(), key=len, default={})


def _published(method: str) -> float:
    """Seconds per batch in the paper's table 10."""
    row = published.table(10).row(method)
    value = row.cells["seconds_per_batch"].value if row else None
    return float(value) if value is not None else math.nan


def _held(entry: ContestantRuns) -> float:
    return entry.needs.held / entry.needs.network if entry.needs else math.nan


def _draw(every: Sequence[ContestantRuns]) -> Figure:
    first = sorted(every, key=lambda entry: entry.experiment.method.name != "roid")[:SHOWN]
    entries = [entry for entry in every if entry in first]
    shown = [
        ("step time / plain method", 2, [entry.ratio for entry in entries]),
        ("numbers held / network", 3, [_held(entry) for entry in entries]),
        ("accuracy, %", 1, [entry.accuracy for entry in entries]),
    ]
    shown = [panel for panel in shown if any(map(math.isfinite, panel[2]))]
    height = 0.8 + 0.24 * len(entries)
    drawn, axes = figure.panels(1, len(shown), width=figure.PAGE, height=height, sharey=True)
    names = [entry.name for entry in entries]
    for axis, (label, decimals, values) in zip(axes[0], shown, strict=True):
        axis.barh(names, values, height=0.62, color=[colour(name) for name in names])
        for at, value in enumerate(values):
            if math.isfinite(value):
                text = f"{value:.{decimals}f}"
                axis.text(value, at, f" {text}", va="center", ha="left", fontsize=7)
        axis.set_xlim(0, 1.18 * max(value for value in values if math.isfinite(value)))
        axis.set_xlabel(label)
        axis.grid(visible=True, axis="x")
        axis.grid(visible=False, axis="y")
    axes[0][0].set_ylim(len(entries) - 0.4, -0.6)
    return drawn
