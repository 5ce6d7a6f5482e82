"""Which classes are predicted, along the stream: a model whose errors add up uses fewer and fewer of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import figure, naming
from tidefast.paper.analysis import Analysis, Finding, frame, registry
from tidefast.paper.figure import line_styles
from tidefast.paper.scale import Setting
from tidefast.report.sheet import Cell, Row, Sheet, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = "true labels"
SHOWN = 3
"""At most so many contestants are drawn, beside the labels."""
DEEP = 2.0
"""The darkest colour: a class has so many times its share among equals."""

STEADY = 0.95
"""Predictions are biased when fewer classes are in use than this share of those among the labels."""


@dataclass(frozen=True, eq=False)
class Use:
    """How often classes were predicted."""

    counts: metrics.Counts
    """Of all classes, [batches, classes]."""
    block: int
    chosen: metrics.Counts
    """The classes that are looked at one by one."""
    histogram: metrics.Counts
    """Of the chosen ones, [blocks, chosen]."""

    @property
    def shares(self) -> metrics.Floats:
        """The histogram as shares of all predictions of a block."""
        starts = np.arange(0, len(self.counts), self.block)
        total = np.add.reduceat(self.counts.sum(axis=1), starts)
        return self.histogram / np.maximum(total, 1)[:, None]

    @property
    def spread(self) -> metrics.Floats:
        """Effective number of classes of each block: exp of the entropy."""
        starts = range(0, len(self.counts), self.block)
        return np.array([metrics.effective_classes(self.counts[start : start + self.block]) for start in starts])

    @property
    def first_quarter(self) -> metrics.Counts:
        """The counts of the first quarter of the stream."""
        return self.counts[metrics.first_quarter(len(self.counts))]

    @property
    def last_quarter(self) -> metrics.Counts:
        """The counts of the last quarter."""
        return self.counts[metrics.last_quarter(len(self.counts))]

    @property
    def missing(self) -> float:
        """The share of the chosen classes that the last quarter never predicts."""
        return float((self.last_quarter[:, self.chosen].sum(axis=0) == 0).mean())

    @property
    def largest(self) -> float:
        """The share of the most frequent class in the last quarter."""
        total = self.last_quarter.sum(axis=0)
        return float(total.max() / total.sum())


@registry.register("collapse")
class Collapse(Analysis):
    """Does a model go on predicting all classes?"""

    title = "How often ten classes are predicted along the stream, and how many are in use at all"
    paper = ("figure collapse",)

    def experiments(self, setting: Setting) -> list[Experiment]:
        policies = ("never", *setting.rdumbs, "ASR")
        return [setting.experiment(setting.ccc("hard"), "ETA", policy) for policy in policies]

    def accepts(self, run: Run) -> bool:
        return run.batches >= 4

    def evaluate(self, runs: list[Run]) -> Finding:
        runs = list({run.experiment.digest: run for run in runs}.values())
        named = dict(zip(naming.names([run.experiment for run in runs]), runs, strict=True))
        uses = {name: use(run.steps["predicted"]) for name, run in named.items()}
        labels = {name: use(run.steps["labels"]) for name, run in named.items()}
        chosen = naming.on_one_stream(named, SHOWN)
        shown = {LABELS: labels[chosen[0]], **{name: uses[name] for name in chosen}}
        sheet = Sheet(
            "collapse",
            "Classes in use" + naming.where(runs),
            "contestant",
            ("first quarter", "last quarter", "worst block", "labels", "never predicted, %", "largest class, %"),
            tuple(Row(name, _cells(use, labels[name])) for name, use in uses.items()),
            (
                "In use: exp of the entropy of the predictions; of the labels, in the last quarter. Never predicted: "
                "which part of the classes of the figure, ten or all there are, does not occur in the last quarter. "
                "Largest class: its share in the last quarter.",
            ),
        )
        return Finding(
            {
                "histogram": _histogram(uses | {LABELS: shown[LABELS]}),
                "spread": _spread(uses | {LABELS: shown[LABELS]}),
            },
            (sheet,),
            lambda: _draw(shown),
            tuple(_remark(name, uses[name], labels[name]) for name in chosen),
        )


def use(counts: metrics.Counts) -> Use:
    """From how often each class was predicted in each batch."""
    block = metrics.block_length(len(counts))
    return Use(counts, block, *metrics.prediction_histogram(counts, block))


def _cells(use: Use, labels: Use) -> tuple[Cell, ...]:
    return (
        number(metrics.effective_classes(use.first_quarter), 2),
        number(metrics.effective_classes(use.last_quarter), 2),
        number(float(use.spread.min()), 2),
        number(metrics.effective_classes(labels.last_quarter), 2),
        number(100 * use.missing, 0),
        number(100 * use.largest),
    )


def _histogram(uses: Mapping[str, Use]) -> dict[str, list[Any]]:
    rows = [
        (name, at * use.block, int(label), int(count))
        for name, use in uses.items()
        for at, line in enumerate(use.histogram)
        for label, count in zip(use.chosen, line, strict=True)
    ]
    return frame(("contestant", "batch", "class", "predictions"), rows)


def _spread(uses: Mapping[str, Use]) -> dict[str, list[Any]]:
    rows = [(name, at * use.block, float(n)) for name, use in uses.items() for at, n in enumerate(use.spread)]
    return frame(("contestant", "batch", "classes_in_use"), rows)


def _remark(name: str, use: Use, labels: Use) -> str:
    first, last, there = (
        metrics.effective_classes(counts) for counts in (use.first_quarter, use.last_quarter, labels.last_quarter)
    )
    least, lost = float(use.spread.min()), round(use.missing * len(use.chosen))
    state = (
        "has narrowed to few classes"
        if last < there / 2
        else "is biased"
        if last < STEADY * there or lost
        else "is biased at times"
        if least < STEADY * there
        else "stays spread"
    )
    return (
        f"{name} {state}: {first:.1f} classes in use in the first quarter, {last:.1f} in the last, {least:.1f} at "
        f"least, where the labels have {there:.1f}; in the last quarter {lost} of {len(use.chosen)} classes are never "
        f"predicted, the largest takes {100 * use.largest:.0f} %."
    )


def _draw(uses: Mapping[str, Use]) -> Figure:
    from matplotlib.ticker import MaxNLocator

    drawn, axes = figure.panels(2, len(uses), height=1.6, sharey="row", height_ratios=(1.2, 1))
    for axis in axes[1]:
        axis.remove()
    below = drawn.add_subplot(axes[1, 0].get_gridspec()[1, :])
    looks = line_styles([name for name in uses if name != LABELS])
    looks[LABELS] = {"color": figure.GREY, "linestyle": ":"}
    for axis, (name, use) in zip(axes[0], uses.items(), strict=True):
        end = len(use.counts)
        edges = np.minimum(np.arange(len(use.histogram) + 1) * use.block, end)
        mesh = axis.pcolormesh(
            edges,
            np.arange(len(use.chosen) + 1) - 0.5,
            100 * use.shares.T,
            cmap="Blues",
            vmin=0,
            vmax=100 * DEEP / use.counts.shape[1],
            rasterized=True,
        )
        axis.set_title(name)
        axis.set_xlabel("batch")
        axis.xaxis.set_major_locator(MaxNLocator(3))
        axis.set_yticks(range(len(use.chosen)), [str(label) for label in use.chosen])
        axis.grid(visible=False)
        below.plot(edges[:-1] + np.diff(edges) / 2, use.spread, label=name, **looks[name])
    axes[0, 0].set_ylabel("class")
    drawn.colorbar(mesh, ax=axes[0].tolist(), label="predictions, %", extend="max", pad=0.01)
    classes = max(use.counts.shape[1] for use in uses.values())
    below.set(xlabel="batch", ylabel="classes in use", xlim=(0, max(len(use.counts) for use in uses.values())))
    below.set_ylim(0, 1.05 * classes)
    drawn.legend(loc="outside lower center", ncols=4 if len("".join(uses)) < 70 else 2)
    return drawn
