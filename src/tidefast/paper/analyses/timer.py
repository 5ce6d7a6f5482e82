"""Is ASR's trigger a timer: what it does on a model that learns nothing, on noise, and on runs that learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.core import bundle
from tidefast.core.specification import Specification
from tidefast.paper import figure, naming, trigger_replay
from tidefast.paper.analysis import Analysis, Finding, frame, registry
from tidefast.paper.scale import LEVELS, Place, Setting
from tidefast.paper.study import StudyError, accuracy, asr_of
from tidefast.report.sheet import Cell, Row, Sheet, number
from tidefast.resets import ASR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IDLE = "batchnorm"
"""The method that learns nothing."""
WINDOW = metrics.AROUND
"""Batches over which accuracy is looked at before a reset."""
PHIS = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9)
DEADLOCK = 0.95
"""Disagreement with the source over the last quarter, without any reset, from which on the rule stands still."""
THOUSAND_STEPS = 300
"""Batches of the stream with a thousand classes."""
RATE = 2.5e-4
"""The published learning rate for ImageNet."""
_COLUMNS = (
    "accuracy, %",
    "phi",
    "resets",
    "interval",
    "on what BatchNorm sees",
    "on noise",
    "excess / noise",
    "r with accuracy before",
    "r by chance",
)
_NOTES = (
    "Interval: batches from one reset to the next, mean ± standard deviation. On what BatchNorm sees: the rule "
    "replayed on the concentrations of batch statistics on the same stream, with the run's own phi. On noise: on white "
    "noise about a constant, as large as the fluctuation of C_t from batch to batch, with phi held at its mean.",
    "Excess / noise: by how much C_t was above C-bar at a reset, in standard deviations of that noise.",
    f"r: of being reset with what accuracy, less that of BatchNorm on the same images, did in the {WINDOW} batches "
    f"before, against the {WINDOW} before those; negative if resets come after falls. By chance: the range of 95 % for "
    "the same resets at shifted batches.",
)


@dataclass(frozen=True, eq=False)
class TriggerRun:
    """A run with ASR, and what its rule would have done elsewhere."""

    name: str
    run: Run
    policy: ASR
    idle: Run | None
    """Batch statistics on the same stream."""

    @property
    def classes(self) -> int:
        return int(self.run.steps["labels"].shape[1])

    @property
    def concentration(self) -> metrics.Floats:
        return np.asarray(self.run.steps["concentration"], float)

    @property
    def inconsistency(self) -> metrics.Floats:
        shares: metrics.Floats = np.nan_to_num(np.asarray(self.run.steps["inconsistency"], float))
        return shares

    @property
    def phi(self) -> float:
        return float(self.inconsistency.mean())

    @property
    def own(self) -> metrics.Floats:
        """Intervals between its resets."""
        return trigger_replay.intervals(self.run.resets)

    @property
    def on_idle(self) -> metrics.Floats:
        """Intervals of the rule on the concentrations of batch statistics, with the run's phi."""
        if self.idle is None:
            return np.empty(0)
        values = np.asarray(self.idle.steps["concentration"], float)
        return trigger_replay.intervals(trigger_replay.replay(values, self.inconsistency, self.policy, self.classes))

    @property
    def on_noise(self) -> metrics.Floats:
        return self.noise_at(self.phi)

    def noise_at(self, phi: float) -> metrics.Floats:
        """Intervals of the rule on noise of this size."""
        return trigger_replay.noise_intervals(self.concentration, phi, self.policy, self.classes)

    @property
    def excess(self) -> float:
        """By how much C_t was above C-bar at the resets, in deviations of the noise."""
        if not len(self.run.resets):
            return math.nan
        above = self.concentration - np.asarray(self.run.steps["threshold"], float)
        return float(above[self.run.resets].mean()) / trigger_replay.fluctuation(self.concentration)

    @property
    def before(self) -> tuple[float, float, float]:
        """How resets go with what accuracy did before them, and the range of that by chance."""
        if self.idle is None or self.idle is self.run:
            return math.nan, math.nan, math.nan
        gain = self.run.batch_accuracy - self.idle.batch_accuracy
        return trigger_replay.correlation_before(self.run.resets, gain, WINDOW)

    @property
    def stands_still(self) -> bool:
        """Whether it was never reset and ended in disagreement with the source on nearly everything."""
        last = metrics.last_quarter(self.run.batches)
        return not len(self.run.resets) and float(self.inconsistency[last].mean()) >= DEADLOCK


@registry.register("timer")
class Timer(Analysis):
    """Does ASR fire because predictions concentrate, or because time has passed?"""

    title = "Intervals between ASR's resets, on a model that learns nothing and on noise, and what precedes a reset"
    paper = ("table 16",)

    def experiments(self, setting: Setting) -> list[Experiment]:
        wanted = [
            setting.experiment(setting.ccc(level), method, "ASR")
            for level in LEVELS
            for method in ("BatchNorm", "ETA", "ROID")
        ]
        return [*wanted, *(_thousand_classes(setting) if bundle.available() else ())]

    def accepts(self, run: Run) -> bool:
        policy = asr_of(run.experiment)
        return policy is not None and policy.when.watches and bool(np.isfinite(run.steps["inconsistency"]).any())

    def evaluate(self, runs: list[Run]) -> Finding:
        measured = _measured(runs)
        drawn = [each for each in measured if len(each.run.resets) and each.idle is not each.run]
        if not drawn:
            raise StudyError(
                "none of these runs can be looked at: there must be some with ASR that learn and were reset, and, for "
                "comparison, batchnorm with ASR on the same streams"
            )
        noise = _noise_frame(list({each.classes: each for each in drawn}.values()))
        still = next((each for each in measured if each.stands_still), None)
        frames: dict[str, Any] = {
            "intervals": _interval_frame(measured),
            "noise": noise,
        }
        if still:
            frames["deadlock"] = _deadlock_frame(still)
        sheets = (
            Sheet(
                "timer",
                "When the rule fires" + naming.where(runs),
                "run",
                _COLUMNS,
                tuple(Row(each.name, _cells(each)) for each in measured),
                _NOTES,
            ),
            Sheet(
                "timer-noise",
                "Interval on white noise of the size of a run's, when phi is held",
                "run",
                tuple(f"phi {phi:g}" for phi in PHIS),
                tuple(Row(name, _noise_cells(noise, name)) for name in dict.fromkeys(noise["run"])),
                ("None: not once within the length of the run.",),
            ),
        )
        return Finding(frames, sheets, lambda: _draw(measured, drawn, noise, still), (*_remarks(measured),))


def _thousand_classes(setting: Setting) -> list[Experiment]:
    """Where the rule stands still: ten times the published rate on a thousand classes; and the published one."""
    like = setting.ccc("hard")
    steps = min(like.steps or THOUSAND_STEPS, THOUSAND_STEPS)
    stream = Specification("ccc-1k", {"level": "hard"}, "Hard, 1,000 classes")
    place = Place(stream, 43, steps, 32)
    fast, published = ({"name": "sgd", "lr": rate, "momentum": 0.9, "nesterov": True} for rate in (10 * RATE, RATE))
    common: dict[str, Any] = {**place.fields, "model": "bundled-lite0", "reset": "asr"}
    return [
        Experiment(**common, method={"name": IDLE, "title": "BatchNorm"}),
        Experiment(**common, method={"name": "eta", "title": "ETA (published rate)"}, optimizer=published),
        Experiment(**common, method={"name": "eta", "title": "ETA (ten times the rate)"}, optimizer=fast),
    ]


def _measured(runs: Sequence[Run]) -> list[TriggerRun]:
    idle = {naming.place(run): run for run in runs if run.experiment.method.name == IDLE}
    measured = []
    for name, run in zip(naming.names([run.experiment for run in runs], placed=True), runs, strict=True):
        policy = asr_of(run.experiment)
        assert policy is not None
        measured.append(TriggerRun(name, run, policy, idle.get(naming.place(run))))
    return measured


def _spread(values: metrics.Floats) -> Cell:
    if not len(values):
        return Cell()
    mean, std = float(values.mean()), float(values.std())
    return Cell(f"{mean:.1f} ± {std:.1f}", mean, std=std, count=len(values))


def _cells(each: TriggerRun) -> tuple[Cell, ...]:
    r, low, high = each.before
    chance = Cell() if math.isnan(r) else Cell(f"{low:+.2f} to {high:+.2f}", low, interval=(low, high))
    return (
        number(accuracy(each.run)),
        number(each.phi, 2),
        number(len(each.run.resets), 0),
        _spread(each.own),
        _spread(each.on_idle),
        _spread(each.on_noise),
        number(each.excess),
        number(r, 2, signed=True),
        chance,
    )


def _interval_frame(measured: Sequence[TriggerRun]) -> dict[str, list[Any]]:
    rows = [
        (each.name, source, float(value))
        for each in measured
        for source, values in (("run", each.own), (IDLE, each.on_idle), ("noise", each.on_noise))
        for value in values
    ]
    return frame(("run", "concentrations of", "interval"), rows)


def _noise_frame(runs: Sequence[TriggerRun]) -> dict[str, list[Any]]:
    by_phi = [(each, phi, each.noise_at(phi)) for each in runs for phi in PHIS]
    rows = [
        (each.name, each.classes, phi, float(values.mean()), float(values.std()))
        for each, phi, values in by_phi
        if len(values)
    ]
    return frame(("run", "classes", "phi", "mean", "std"), rows)


def _noise_cells(noise: Mapping[str, Sequence[Any]], name: str) -> tuple[Cell, ...]:
    own = {
        phi: Cell(f"{mean:.0f} ± {std:.0f}", mean, std=std)
        for run, phi, mean, std in zip(*(noise[key] for key in ("run", "phi", "mean", "std")), strict=True)
        if run == name
    }
    return tuple(own.get(phi, Cell("none")) for phi in PHIS)


def _deadlock_frame(each: TriggerRun) -> dict[str, list[Any]]:
    columns = {
        name: [float(value) for value in each.run.steps[name]]
        for name in ("concentration", "threshold", "inconsistency")
    }
    return {"batch": list(range(each.run.batches)), **columns, "accuracy": each.run.batch_accuracy.tolist()}


def _remarks(measured: Sequence[TriggerRun]) -> list[str]:
    remarks = []
    for each in measured:
        if each.stands_still:
            last = metrics.last_quarter(each.run.batches)
            right = 100 * metrics.accuracy(each.run.steps["correct"][last], each.run.steps["images"][last])
            moved = np.ptp(np.asarray(each.run.steps["threshold"], float)[last])
            remarks.append(
                f"{each.name}: never reset, {right:.1f} % right in the last quarter. It disagrees with the source on "
                f"{100 * each.inconsistency[last].mean():.0f} % of the images, so that C-bar hardly moves (by "
                f"{moved:.4f} in that quarter) and C_t stays below it: the rule stands still."
            )
        elif each.idle is each.run:
            remarks.append(
                f"{each.name} learns nothing, so that no errors can add up, and is reset every "
                f"{each.own.mean():.0f} batches."
            )
        elif len(each.run.resets):
            remarks.append(_remark(each))
    return remarks


def _remark(each: TriggerRun) -> str:
    told = f"{each.name}: every {each.own.mean():.0f} batches; noise of the same size, every {_mean(each.on_noise)}"
    if len(each.on_idle):
        told += f"; the concentrations of BatchNorm, every {_mean(each.on_idle)}"
    r, low, high = each.before
    if not math.isnan(r):
        sign = "falls" if r < low else "rises" if r > high else ""
        told += (
            f". Resets come after {sign} of accuracy more often than by chance"
            if sign
            else ". What accuracy did before has no more to do with resets than chance gives"
        )
    return f"{told}."


def _mean(values: metrics.Floats) -> str:
    return f"{values.mean():.0f}" if len(values) else "never"


def _draw(
    measured: Sequence[TriggerRun],
    drawn: Sequence[TriggerRun],
    noise: Mapping[str, Sequence[Any]],
    still: TriggerRun | None,
) -> Figure:
    picture, axes = figure.panels(2 if still else 1, 2, height=2.3)
    _draw_intervals(axes[0, 0], _longest(drawn))
    _draw_by_phi(axes[0, 1], [each for each in measured if len(each.run.resets)], noise)
    if still:
        _draw_threshold(axes[1, 0], still)
        _draw_accuracy(axes[1, 1], still)
    figure.letter(list(axes.ravel()))
    return picture


def _longest(drawn: Sequence[TriggerRun]) -> TriggerRun:
    """One with many intervals, of the method and the level that the paper's figures are about if it is there."""
    first = [each for each in drawn if each.name.startswith(naming.FIRST)] or list(drawn)
    hard = [each for each in first if each.run.experiment.stream.options.get("level") == "hard"] or first
    return max(hard, key=lambda each: len(each.run.resets))


def _draw_intervals(axes: Axes, each: TriggerRun) -> None:
    shown = {
        "the run": (each.own, figure.BLUE, "-"),
        "rule on BatchNorm's $C_t$": (each.on_idle, figure.INK, "--"),
        "rule on noise": (each.on_noise, figure.GREY, ":"),
    }
    for label, (values, colour, dash) in shown.items():
        if len(values):
            ordered = np.sort(values)
            shares = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
            axes.step([0.0, *ordered], [0.0, *shares], where="post", color=colour, linestyle=dash, label=label)
    axes.set(xlabel="batches from one reset to the next", ylabel="intervals that are shorter, %", ylim=(0, 103))
    axes.set_xlim(left=0)
    axes.set_title(each.name, fontsize=7)
    axes.legend(loc="upper left")


def _draw_by_phi(axes: Axes, met: Sequence[TriggerRun], noise: Mapping[str, Sequence[Any]]) -> None:
    for classes, dash in zip(dict.fromkeys(noise["classes"]), figure.DASHES, strict=False):
        own = np.asarray(noise["classes"]) == classes
        phi, mean, std = (np.asarray(noise[name], float)[own] for name in ("phi", "mean", "std"))
        label = f"white noise ± deviation, {classes:,} classes"
        axes.plot(phi, mean, color=figure.GREY, linestyle=dash, label=label)
        axes.fill_between(phi, mean - std, mean + std, color=figure.GREY, alpha=0.2, linewidth=0)
    methods = list(dict.fromkeys(each.run.experiment.label for each in met))
    for at, name in enumerate(methods):
        here = [each for each in met if each.run.experiment.label == name]
        axes.errorbar(
            [each.phi for each in here],
            [float(each.own.mean()) for each in here],
            [float(each.own.std()) for each in here],
            color=figure.PALETTE[at % len(figure.PALETTE)],
            marker=figure.MARKERS[at % len(figure.MARKERS)],
            linestyle="none",
            linewidth=0.8,
            capsize=2,
            label=name,
        )
    axes.set(xlabel="share that differs from the source, $\\phi$", ylabel="batches between resets")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", fontsize=6)


def _draw_threshold(axes: Axes, each: TriggerRun) -> None:
    axes.plot(each.concentration, color=figure.BLUE, linewidth=0.8, label="$C_t$")
    axes.plot(each.run.steps["threshold"], color=figure.INK, label="$\\bar{C}$: resets above it")
    axes.axhline(-math.log(each.classes), color=figure.GREY, linestyle=":", label="all classes alike")
    axes.set(xlabel="batch", ylabel="concentration")
    axes.set_title(each.name, fontsize=7)
    axes.legend(loc="center right")


def _draw_accuracy(axes: Axes, each: TriggerRun) -> None:
    window = max(1, each.run.batches // 30)
    axes.plot(100 * each.run.smooth_accuracy(window), color=figure.BLUE, label=each.run.experiment.label)
    if each.idle is not None:
        axes.plot(100 * each.idle.smooth_accuracy(window), color=figure.INK, linestyle="--", label="BatchNorm")
    axes.axhline(100 / each.classes, color=figure.GREY, linestyle=":", label="chance")
    axes.set(xlabel=f"batch, mean of {window}", ylabel="accuracy, %")
    axes.set_ylim(0, 1.5 * axes.get_ylim()[1])  # room for the legend
    axes.legend(loc="upper right")
