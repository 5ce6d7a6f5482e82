"""Concentration against accuracy, batch by batch, also without the largest logits."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from holdfast.bench import metrics
from holdfast.bench.experiment import Experiment
from holdfast.bench.ledger import VARIANTS
from holdfast.bench.results import Run
from holdfast.report.sheet import Row, Sheet, number
from holdfast.studies import figure
from holdfast.studies.analysis import Analysis, Finding, registry, title_of
from holdfast.studies.setting import Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = dict(
    zip(
        ("concentration", *VARIANTS),
        ("softmax of mean logits", "mean of softmax", "without the largest logit", "without the largest 10 %"),
        strict=True,
    )
)
SHOWN = 6
"""At most so many runs are drawn."""


@registry.register("concentration")
class Concentration(Analysis):
    """Does high concentration go with low accuracy, and is it more than a few large logits?"""

    title = "Concentration against batch accuracy, and their correlation without the largest logits"
    paper = ("figure C_t_vs_acc", "table 8")

    def experiments(self, setting: Setting) -> list[Experiment]:
        return [setting.experiment(setting.ccc("hard"), "ETA", reset) for reset in ("never", "ASR")]

    def evaluate(self, runs: list[Run]) -> Finding:
        shares = [metrics.batch_accuracy(run.steps["correct"], run.steps["images"]) for run in runs]
        rows, remarks = [], []
        for run, share in zip(runs, shares, strict=True):
            found = [metrics.correlation(run.steps[name], share) for name in MEASURES]
            rows.append(Row(title_of(run), tuple(number(r, 2) for r in found)))
            if np.isfinite(found[0]):
                holds = "falls" if found[0] < 0 else "rises"
                remarks.append(f"{title_of(run)}: accuracy {holds} as concentration rises, r = {found[0]:.2f}.")
        sheet = Sheet(
            "concentration", "Pearson's r of concentration and batch accuracy", "run", (*MEASURES.values(),), (*rows,)
        )
        frame = {
            "run": [title_of(run) for run in runs for _ in range(run.batches)],
            "batch": list(itertools.chain.from_iterable(run.steps["step"].tolist() for run in runs)),
            "accuracy": np.concatenate(shares).tolist(),
            **{name: np.concatenate([run.steps[name] for run in runs]).tolist() for name in MEASURES},
        }
        return Finding({"batches": frame}, (sheet,), lambda: _draw(runs[:SHOWN], shares), (*remarks,))


def _draw(runs: list[Run], shares: list[metrics.Floats]) -> Figure:
    drawn, axes = figure.panels(1, len(runs), width=min(figure.PAGE, 0.4 + 2.8 * len(runs)), sharey=True, sharex=True)
    for one, run, share in zip(axes[0], runs, shares, strict=False):
        value = run.steps["concentration"]
        rng = np.random.default_rng(0)  # accuracies of small batches coincide: spread them by less than one image
        jitter = rng.uniform(-0.4, 0.4, len(share)) / run.steps["images"]
        one.plot(
            value, 100 * (share + jitter), ".", color=figure.colour(run.experiment.label), alpha=0.4, ms=2.5, mew=0
        )
        r = metrics.correlation(value, share)
        one.set_title(f"{title_of(run)}\nr = {r:.2f}")
        one.set_xlabel("concentration $C_t$")
    axes[0][0].set_ylabel("batch accuracy, %")
    return drawn


def _label(run: Run) -> str:
    return f"{run.experiment.label}, {run.experiment.stream.label}"
