"""Concentration against accuracy, batch by batch and on average, also without the largest logits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.experiment import Experiment
from tidefast.bench.ledger import VARIANTS
from tidefast.bench.metrics import Floats
from tidefast.bench.results import Run
from tidefast.paper import figure, naming
from tidefast.paper.analysis import Analysis, Finding, registry
from tidefast.paper.scale import Setting
from tidefast.paper.study import asr_of
from tidefast.report.sheet import Row, Sheet, number
from tidefast.resets.asr.measures import SoftmaxOfMean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = dict(
    zip(
        ("concentration", *VARIANTS),
        ("softmax of mean logits", "mean of softmax", "without the largest logit", "without the largest 10 %"),
        strict=True,
    )
)
BLOCK = 20
"""Batches of an average: in a small batch, which classes it happens to hold moves the concentration most."""
SHOWN = 4
"""At most so many runs are drawn."""


@registry.register("concentration")
class Concentration(Analysis):
    """Does high concentration go with low accuracy, and is it more than a few large logits?"""

    title = "Concentration against accuracy, by batch and on average, and without the largest logits"
    paper = ("figure C_t_vs_acc", "table 8")

    def experiments(self, setting: Setting) -> list[Experiment]:
        return [setting.experiment(setting.ccc("hard"), "ETA", reset) for reset in ("never", "ASR")]

    def accepts(self, run: Run) -> bool:
        policy = asr_of(run.experiment)  # under another measure, that is what the run recorded
        return policy is None or policy.measure == SoftmaxOfMean()

    def evaluate(self, runs: list[Run]) -> Finding:
        names = naming.names([run.experiment for run in runs], placed=True)
        shares = [metrics.batch_accuracy(run.steps["correct"], run.steps["images"]) for run in runs]
        averages = [_averages(run) for run in runs]
        rows, remarks = [], []
        for name, run, share, (slow, slow_share) in zip(names, runs, shares, averages, strict=True):
            correlations = [metrics.correlation(run.steps[measure], share) for measure in MEASURES]
            average = metrics.correlation(slow, slow_share)
            rows.append(Row(name, tuple(number(r, 2, signed=True) for r in (*correlations, average))))
            remarks.append(_remark(name, correlations, run.batches, average))
        sheet = Sheet(
            "concentration",
            "Pearson's r of concentration and accuracy",
            "run",
            (
                *(f"{label}, by batch" for label in MEASURES.values()),
                f"softmax of mean logits, averages of {BLOCK} batches",
            ),
            (*rows,),
            ("The paper prints the magnitude of r; a negative one says that accuracy falls as concentration rises.",),
        )
        frames = {
            "batches": {
                "run": [name for name, run in zip(names, runs, strict=True) for _ in range(run.batches)],
                "batch": list(itertools.chain.from_iterable(run.steps["step"].tolist() for run in runs)),
                "accuracy": np.concatenate(shares).tolist(),
                **{measure: np.concatenate([run.steps[measure] for run in runs]).tolist() for measure in MEASURES},
            },
            "averages": {
                "run": [name for name, (slow, _) in zip(names, averages, strict=True) for _ in slow],
                "concentration": np.concatenate([slow for slow, _ in averages]).tolist(),
                "accuracy": np.concatenate([share for _, share in averages]).tolist(),
            },
        }
        return Finding(frames, (sheet,), lambda: _draw(names[:SHOWN], runs[:SHOWN], shares, averages), (*remarks,))


def _averages(run: Run) -> tuple[Floats, Floats]:
    """Concentration and accuracy over `BLOCK` batches, block by block; what is left at the end is dropped."""
    count = run.batches // BLOCK
    value = np.asarray(run.steps["concentration"], float)[: count * BLOCK].reshape(count, BLOCK)
    end = count * BLOCK
    return value.mean(axis=1), metrics.windowed(run.steps["correct"][:end], run.steps["images"][:end], BLOCK)


def _remark(name: str, by_batch: Sequence[float], batches: int, average: float) -> str:
    if not math.isfinite(by_batch[0]):
        return f"{name}: neither concentration nor accuracy can be correlated where one of them never changes."
    remark = f"{name}: by batch |r| = {abs(by_batch[0]):.2f}, {_sign(by_batch[0], batches)}"
    if math.isfinite(average):
        remark += f"; over averages of {BLOCK} batches |r| = {abs(average):.2f}, {_sign(average, batches // BLOCK)}"
    if not _clear(by_batch[0], batches):
        return f"{remark}."
    first, without = by_batch[0], by_batch[2:]
    kept = all(math.isfinite(r) and r * first > 0 and abs(r) >= 0.5 * abs(first) for r in without)
    holds = "remains, as in the paper" if kept else "does not remain, against the paper"
    return f"{remark}; without the largest logits, at least half of the correlation by batch {holds}."


def _clear(r: float, count: int) -> bool:
    """Whether a correlation is more than twice what independent numbers have by chance."""
    return abs(r) > 2 / math.sqrt(max(1, count))


def _sign(r: float, count: int) -> str:
    if not _clear(r, count):
        return "no more than chance gives"
    return "negative (accuracy falls as concentration rises)" if r < 0 else "positive (accuracy rises with it)"


def _draw(
    names: Sequence[str], runs: Sequence[Run], shares: Sequence[Floats], averages: Sequence[tuple[Floats, Floats]]
) -> Figure:
    width = min(figure.PAGE, 0.5 + 2.6 * len(runs))
    drawn, axes = figure.panels(2, len(runs), width=width, height=2.1, sharex=True, sharey="row")
    for above, below, name, run, share, (slow, slow_share) in zip(*axes, names, runs, shares, averages, strict=False):
        colour = figure.colour(run.experiment.label)
        value = run.steps["concentration"]
        rng = np.random.default_rng(0)  # accuracies of small batches coincide: spread them by less than one image
        jitter = rng.uniform(-0.4, 0.4, len(share)) / run.steps["images"]
        above.plot(value, 100 * (share + jitter), ".", color=colour, alpha=0.4, ms=2.5, mew=0)
        below.plot(slow, 100 * slow_share, "o", color=colour, alpha=0.7, ms=3.5, mew=0)
        above.set_title(f"{name}\neach batch: r = {metrics.correlation(value, share):.2f}")
        below.set_title(f"averages of {BLOCK} batches: r = {metrics.correlation(slow, slow_share):.2f}")
        below.set_xlabel("concentration $C_t$")
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy, %")
    return drawn
