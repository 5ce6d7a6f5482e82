"""What the probabilities of answers are worth: confidence against accuracy, in all and along the stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.calibration import BINS, Reliability
from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import figure, naming
from tidefast.paper.analysis import Analysis, Finding, frame, registry
from tidefast.paper.figure import line_styles
from tidefast.paper.scale import Setting
from tidefast.report.sheet import Cell, Row, Sheet, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 6
"""At most so many contestants are drawn."""
SHORTEST = 4
"""Batches that a run must have."""
CLOSE = 0.01
"""Confidence and accuracy that lie no further apart agree."""


@dataclass(frozen=True, eq=False)
class Trust:
    """What the answers of a run were worth as probabilities."""

    batches: int
    block: int
    whole: Reliability
    first_quarter: Reliability
    last_quarter: Reliability
    blocks: tuple[Reliability, ...]


@registry.register("calibration")
class Calibration(Analysis):
    """May the probability of an answer be trusted, and for how long?"""

    title = "Confidence against accuracy: calibration error, log likelihood loss and Brier score along the stream"

    def experiments(self, setting: Setting) -> list[Experiment]:
        alone = [("Source", "never"), ("BatchNorm", "never")]
        contestants = alone + [(method, policy) for method in ("ETA", "ROID") for policy in ("never", "ASR")]
        return [setting.experiment(setting.ccc("hard"), method, policy) for method, policy in contestants]

    def accepts(self, run: Run) -> bool:
        return run.batches >= SHORTEST and run.reliability is not None

    def evaluate(self, runs: list[Run]) -> Finding:
        distinct = {run.experiment.digest: run for run in runs if self.accepts(run)}
        if not distinct:
            raise ValueError("these runs did not keep the probabilities of their answers; run them again")
        named = dict(zip(naming.names([run.experiment for run in distinct.values()]), distinct.values(), strict=True))
        trusts = {name: trust(run) for name, run in named.items()}
        chosen = {name: trusts[name] for name in naming.on_one_stream(named, SHOWN)}
        sheet = Sheet(
            "calibration",
            "Calibration of answers" + naming.where([*distinct.values()]),
            "contestant",
            (
                *("accuracy, %", "confidence, %", "calibration error, %", "by chance, %"),
                *("in the first quarter, %", "in the last quarter, %", "log likelihood loss", "Brier score"),
            ),
            tuple(Row(name, _cells(trust)) for name, trust in trusts.items()),
            (
                "Calibration error (ECE): how far the probability of an answer and its accuracy are apart, over "
                f"{BINS} bins; by chance: what it would be, of so many images, if every probability were right. "
                "Log likelihood loss: of the true class, in nats. Brier score: from 0 to 2. All: less is better.",
            ),
        )
        return Finding(
            {"bins": _bins(trusts), "blocks": _blocks(trusts)},
            (sheet,),
            lambda: _draw(chosen),
            tuple(_remark(name, trust) for name, trust in trusts.items()),
        )


def trust(run: Run) -> Trust:
    """From a run that kept the probabilities of its answers."""
    block = metrics.block_length(run.batches)
    return Trust(
        run.batches,
        block,
        run.reliability_in(slice(None)),
        run.reliability_in(metrics.first_quarter(run.batches)),
        run.reliability_in(metrics.last_quarter(run.batches)),
        tuple(run.reliability_in(slice(start, start + block)) for start in range(0, run.batches, block)),
    )


def _cells(trust: Trust) -> tuple[Cell, ...]:
    whole = trust.whole
    return (
        number(100 * whole.accuracy),
        number(100 * whole.mean_confidence),
        number(100 * whole.error),
        number(100 * whole.error_by_chance),
        number(100 * trust.first_quarter.error),
        number(100 * trust.last_quarter.error),
        number(whole.negative_log_likelihood, 3),
        number(whole.brier, 3),
    )


def _bins(trusts: Mapping[str, Trust]) -> dict[str, list[Any]]:
    rows = [
        (name, int(images), float(sure / images), float(right / images))
        for name, trust in trusts.items()
        for images, sure, right in zip(trust.whole.images, trust.whole.confidence, trust.whole.correct, strict=True)
        if images
    ]
    return frame(("contestant", "images", "confidence", "accuracy"), rows)


def _blocks(trusts: Mapping[str, Trust]) -> dict[str, list[Any]]:
    rows = [
        (name, at * trust.block, block.accuracy, *block.summary().values())
        for name, trust in trusts.items()
        for at, block in enumerate(trust.blocks)
    ]
    return frame(("contestant", "batch", "accuracy", "ece", "nll", "brier", "mean_confidence"), rows)


def _remark(name: str, trust: Trust) -> str:
    whole, first, last = trust.whole, trust.first_quarter, trust.last_quarter
    above = whole.mean_confidence - whole.accuracy
    state = (
        "is as sure as it is right"
        if abs(above) <= CLOSE
        else f"is {100 * above:.1f} points surer than it is right"
        if above > 0
        else f"is {-100 * above:.1f} points less sure than it is right"
    )
    return (
        f"{name} {state}: confidence {100 * whole.mean_confidence:.1f} %, accuracy {100 * whole.accuracy:.1f} %; "
        f"{100 * (first.mean_confidence - first.accuracy):+.1f} points in the first quarter, "
        f"{100 * (last.mean_confidence - last.accuracy):+.1f} in the last."
    )


def _draw(trusts: Mapping[str, Trust]) -> Figure:
    drawn, axes = figure.panels(1, 2, height=2.9)
    diagram, course = axes[0]
    looks = line_styles([*trusts])
    diagram.plot([0, 100], [0, 100], color=figure.GREY, linewidth=0.6)
    for name, trust in trusts.items():
        some = trust.whole.images > 0
        sure, right = (
            100 * sums[some] / trust.whole.images[some] for sums in (trust.whole.confidence, trust.whole.correct)
        )
        diagram.plot(sure, right, label=name, marker="o", markersize=2.0, **looks[name])
        middles = (np.arange(len(trust.blocks)) + 0.5) * trust.block
        course.plot(middles, [100 * block.error for block in trust.blocks], **looks[name])
    diagram.set(xlabel="confidence, %", ylabel="accuracy, %", xlim=(0, 100), ylim=(0, 100), aspect="equal")
    lengths = ", ".join(map(str, sorted({trust.block for trust in trusts.values()})))
    course.set(xlabel=f"batch (blocks of {lengths})", ylabel="calibration error, %", ylim=(0, None))
    course.set_xlim(0, max(trust.batches for trust in trusts.values()))
    figure.letter([diagram, course])
    drawn.legend(loc="outside lower center", ncols=3)
    return drawn
