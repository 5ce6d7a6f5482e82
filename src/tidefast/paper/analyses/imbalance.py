"""Labels that come in bursts: accuracy over the concentration of the Dirichlet draw that orders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tidefast import streams
from tidefast.bench import metrics
from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.core.specification import Specification
from tidefast.paper import figure, naming, paired
from tidefast.paper.analysis import Analysis, Finding, registry
from tidefast.paper.figure import marked
from tidefast.paper.naming import NO_RESET, with_names
from tidefast.paper.scale import Setting
from tidefast.paper.study import accuracy, asr_of, plain
from tidefast.report.sheet import Cell, Row, Sheet, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STREAM = "cin-c-noniid"
COLUMNS = 4
"""At most so many base methods are drawn."""


@registry.register("imbalance")
class Imbalance(Analysis):
    """Does ASR mistake skewed labels for a collapse?"""

    title = "Accuracy over the Dirichlet delta that orders labels: the lower, the fewer classes in a batch"
    paper = ("figure label_imbalance",)
    deltas: ClassVar[dict[str, tuple[float, ...]]] = {"mini": (0.1, 1.0, 10.0), "full": (0.01, 0.05, 0.1, 1.0)}
    """By scale. With 1000 classes a draw below 0.01 is not to be had, and one of 1.0 is as good as even."""

    def experiments(self, setting: Setting) -> list[Experiment]:
        policies = ("never", *setting.rdumbs, "ASR")
        contestants = [(base, reset) for base in ("ETA", "ROID") for reset in policies]
        return [
            setting.experiment(setting.cin_c(0, delta), base, reset)
            for delta in self.deltas[setting.name]
            for base, reset in (("Source", "never"), *contestants)
        ]

    def accepts(self, run: Run) -> bool:
        return run.experiment.stream.name.startswith(STREAM) and plain(run.experiment, "periodic")

    def evaluate(self, runs: list[Run]) -> Finding:
        all_series = _series(runs)
        source = next((series for series in all_series if series.unadapted), None)
        deltas = sorted({delta for series in all_series for delta in series.runs})
        labels = {delta: float(np.mean([_distinct(run) for run in _at(all_series, delta)])) for delta in deltas}
        rows = [Row(series.label, tuple(series.cell(delta) for delta in deltas), series.base) for series in all_series]
        rows.append(Row("distinct labels in a batch", tuple(number(labels[delta]) for delta in deltas), "labels"))
        many = any(len(same) > 1 for series in all_series for same in series.runs.values())
        sheet = Sheet(
            "imbalance",
            "Accuracy over the Dirichlet delta, %",
            "contestant",
            tuple(f"delta {delta:g}" for delta in deltas),
            tuple(rows),
            ("The lower delta, the more labels come in bursts.", *["± over orders and seeds"][:many]),
        )
        every = [(series, delta, run) for series in all_series for delta, same in series.runs.items() for run in same]
        frame: dict[str, list[Any]] = {
            "contestant": [series.label for series, _, _ in every],
            "delta": [delta for _, delta, _ in every],
            "order": [run.experiment.stream.options.get("order_number", 0) for _, _, run in every],
            "seed": [run.experiment.seed for _, _, run in every],
            "accuracy": [accuracy(run) for _, _, run in every],
            "distinct_labels": [_distinct(run) for _, _, run in every],
        }
        return Finding(
            {"runs": frame},
            (sheet,),
            lambda: _draw(all_series, labels),
            (*_remarks(all_series), *_against(source, all_series), paired.WHISKERS.format("no reset")),
        )


@dataclass(frozen=True, eq=False)
class _Series:
    """A contestant over the deltas, with the runs at each: orders of the corruptions and seeds are repetitions."""

    base: str
    add_on: str
    runs: dict[float, list[Run]]

    @property
    def unadapted(self) -> bool:
        """Whether it is the source model."""
        return next(iter(self.runs.values()))[0].experiment.method.name == "source"

    @property
    def label(self) -> str:
        return naming.joined(self.base, self.add_on)

    def mean(self, delta: float) -> float:
        return float(np.mean([accuracy(run) for run in self.runs[delta]]))

    def cell(self, delta: float) -> Cell:
        if delta not in self.runs:
            return Cell()
        std = float(np.std([accuracy(run) for run in self.runs[delta]])) if len(self.runs[delta]) > 1 else None
        return number(self.mean(delta), std=std, count=len(self.runs[delta]))


def _series(runs: Sequence[Run]) -> list[_Series]:
    grouped: dict[tuple[str, str, str], dict[float, list[Run]]] = {}
    for named_run in with_names(runs):
        grouped.setdefault((named_run.base, _rest(named_run.run), named_run.add_on), {}).setdefault(
            _delta(named_run.run), []
        ).append(named_run.run)
    several = len({rest for _, rest, _ in grouped}) > 1
    return [
        _Series(f"{base}, {rest}" if several else base, add_on, dict(sorted(by_delta.items())))
        for (base, rest, add_on), by_delta in grouped.items()
    ]


def _delta(run: Run) -> float:
    """The delta of the stream, given or usual."""
    stream = run.experiment.stream
    return float(stream.options.get("delta", getattr(streams.registry.get(stream.name), "delta", np.nan)))


def _rest(run: Run) -> str:
    """What else the stream is, in words."""
    stream, steps = run.experiment.stream, run.experiment.steps
    other = {key: value for key, value in stream.options.items() if key not in ("delta", "order_number", "seed")}
    return Specification(stream.name, other).spelled + ("" if steps is None else f", {steps} batches")


def _distinct(run: Run) -> float:
    """How many classes a batch has, in the mean."""
    return float((run.steps["labels"] > 0).sum(axis=1).mean())


def _at(all_series: Sequence[_Series], delta: float) -> list[Run]:
    return [run for series in all_series for run in series.runs.get(delta, ())]


def _remarks(all_series: Sequence[_Series]) -> list[str]:
    """Where ASR leads, and what the strongest imbalance costs it and the others."""
    remarks = []
    for asr in (series for series in all_series if asr_of(next(iter(series.runs.values()))[0].experiment)):
        others = [series for series in all_series if series.base == asr.base and series is not asr]
        shared = [delta for delta in asr.runs if all(delta in series.runs for series in others)]
        if others and shared:
            differences = {
                delta: [paired.over(asr.runs[delta], series.runs[delta]) for series in others] for delta in shared
            }
            nearest = [
                f"{paired.told(min(of, key=lambda difference: difference.points))} at delta {delta:g}"
                for delta, of in differences.items()
            ]
            verdicts = [paired.over_all(of) for of in differences.values()]
            names = " and ".join(series.label for series in others)
            remarks.append(
                f"{asr.label} against {names} is {paired.counted(verdicts, 'above all of them', 'below one')} of "
                f"{len(shared)} deltas; against the best of them: {'; '.join(nearest)}."
            )
    for series in all_series:
        low, high = min(series.runs), max(series.runs)
        if low < high:
            change = series.mean(low) - series.mean(high)
            verb = "loses" if change < 0 else "gains"
            remarks.append(f"From delta {high:g} to {low:g} {series.label} {verb} {abs(change):.1f} points.")
    return remarks


def _against(source: _Series | None, all_series: Sequence[_Series]) -> list[str]:
    """How far everything is from the model that does not adapt."""
    if source is None:
        return ["Without a run of the source model it is not known who has collapsed."]
    below = [
        delta
        for series in all_series
        if series is not source
        for delta in series.runs
        if delta in source.runs and metrics.collapsed(series.mean(delta), source.mean(delta))
    ]
    met = sum(delta in source.runs for series in all_series if series is not source for delta in series.runs)
    means = ", ".join(f"{source.mean(delta):.1f}" for delta in source.runs)
    return [f"The source model has {means} %: {len(below)} of {met} results are below it, so collapsed."]


def _reach(series: _Series, delta: float, all_series: Sequence[_Series]) -> tuple[float, float]:
    """An error bar: of the difference to the same method without resets."""
    plain = next((other for other in all_series if (other.base, other.add_on) == (series.base, NO_RESET)), series)
    if plain is series or delta not in plain.runs:
        return 0.0, 0.0
    return paired.reach(paired.over(series.runs[delta], plain.runs[delta]))


def _draw(all_series: Sequence[_Series], labels: Mapping[float, float]) -> Figure:
    source = next((series for series in all_series if series.unadapted), None)
    all_series = [series for series in all_series if series is not source] or list(all_series)
    bases = list(dict.fromkeys(series.base for series in all_series))[:COLUMNS]
    names = list(dict.fromkeys(series.add_on for series in all_series))
    stroke = marked(names)
    width = figure.PAGE if len(bases) > 1 else figure.COLUMN * 1.2
    drawn, axes = figure.panels(1, len(bases), width=width, height=2.7, sharey=True)
    for axis, base in zip(axes[0], bases, strict=True):
        for series in (series for series in all_series if series.base == base):
            cells = [series.cell(delta) for delta in series.runs]
            axis.errorbar(
                list(series.runs),
                [cell.value for cell in cells],
                yerr=np.transpose([_reach(series, delta, all_series) for delta in series.runs]),
                elinewidth=0.7,
                label=series.add_on,
                **stroke[series.add_on],
            )
        if source is not None:
            line = [source.mean(delta) for delta in source.runs]
            axis.plot(list(source.runs), line, color=figure.GREY, linestyle="--", label="source model")
        axis.set_xscale("log")
        axis.set_xticks(list(labels), [f"{delta:g}\n({count:.1f})" for delta, count in labels.items()])
        axis.minorticks_off()
        axis.set_xlabel("Dirichlet $\\delta$ (distinct labels in a batch)")
        axis.set_title(base)
    axes[0][0].set_ylim(bottom=0)  # once all panels are drawn: from then on the axis that they share does not grow
    axes[0][0].set_ylabel("accuracy, %")
    figure.legend(drawn, axes[0])
    return drawn
