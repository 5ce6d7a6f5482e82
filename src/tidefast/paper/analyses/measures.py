"""Which measure of concentration should decide: the softmax of the mean logits, or the mean of the softmaxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import figure, scores
from tidefast.paper.analysis import Analysis, Finding, registry
from tidefast.paper.naming import NO_RESET, standing
from tidefast.paper.scale import LEVELS, Setting
from tidefast.paper.scores import Score
from tidefast.paper.study import asr_of, exchanged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

USUAL, OTHER = "softmax-of-mean", "mean-of-softmax"
COLUMNS = 4
"""At most so many base methods are drawn."""


@registry.register("measures")
class Measures(Analysis):
    """Is concentration better read off the softmax of the mean logits?"""

    title = "Accuracy when ASR measures concentration by the softmax of mean logits, and by the mean of softmaxes"
    paper = ("figure sig(mu)_vs_mu(sig)",)

    def experiments(self, setting: Setting) -> list[Experiment]:
        return [
            setting.experiment(setting.ccc(level), base, reset)
            for level in LEVELS
            for base in ("ETA", "ROID")
            for reset in ("never", "ASR", "asr-mean-of-softmax")
        ]

    def accepts(self, run: Run) -> bool:
        policy = asr_of(run.experiment)
        if policy is None:
            return run.experiment.reset.name == "never"
        return not exchanged(policy) - {"measure"} and _measure(run) in (USUAL, OTHER)

    def evaluate(self, runs: list[Run]) -> Finding:
        found = _meeting(scores.scores(runs))
        sheet = scores.sheet("measures", "Accuracy by ASR's measure of concentration, %", found)
        return Finding({"runs": scores.frame(found)}, (sheet,), lambda: _draw(found), (*_remarks(found),))


def _meeting(found: Sequence[Score]) -> list[Score]:
    """Of a large set, the methods and streams where the two measures meet; all when they do nowhere."""
    met = {(one.first.base, one.first.stream) for one in found if _measure(one.first.run) == OTHER}
    return [one for one in found if not met or (one.first.base, one.first.stream) in met]


def _measure(run: Run) -> str:
    policy = asr_of(run.experiment)
    return "" if policy is None else str(policy.measure_settings["name"])


def _remarks(found: Sequence[Score]) -> list[str]:
    """The two measures against each other, and the second against no reset, everywhere they meet."""
    said, wins, meetings = [], 0, 0
    by = {(one.first.base, one.first.stream, _measure(one.first.run) or one.first.add_on): one for one in found}
    for (base, stream, measure), one in by.items():
        other, never = by.get((base, stream, OTHER)), by.get((base, stream, NO_RESET))
        if measure != USUAL or other is None:
            continue
        meetings += 1
        wins += standing(one.mean, other.mean) == "above"
        told = f"{base}, {stream}: {one.mean:.1f} by the softmax of the mean, {other.mean:.1f} by the mean of softmaxes"
        if never is not None:
            told += f", which is {standing(other.mean, never.mean)} the {never.mean:.1f} of no reset"
        said.append(f"{told}.")
    if meetings:
        said.append(f"The softmax of the mean is the better measure, as in the paper, in {wins} of {meetings} cases.")
    return said


def _draw(found: Sequence[Score]) -> Figure:
    bases = list(dict.fromkeys(one.first.base for one in found))[:COLUMNS]
    streams = list(dict.fromkeys(one.first.stream for one in found))
    names = scores.add_ons(found)
    width = scores.size(len(bases), len(streams) * len(names))
    drawn, axes = figure.panels(1, len(bases), width=width, height=2.5, sharey=True)
    for one, base in zip(axes[0], bases, strict=True):
        scores.bars(one, [score for score in found if score.first.base == base], streams, names)
        one.set_title(base)
    axes[0][0].set_ylabel("accuracy, %")
    figure.legend(drawn, axes[0])
    return drawn
