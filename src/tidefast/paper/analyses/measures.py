"""Which measure of concentration should decide: the softmax of the mean logits, or the mean of the softmaxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import figure, paired, scores, source_line
from tidefast.paper.analysis import Analysis, Finding, registry
from tidefast.paper.naming import NO_RESET
from tidefast.paper.scale import LEVELS, Setting
from tidefast.paper.scores import Score
from tidefast.paper.source_line import Sources
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
        wanted = (
            setting.experiment(setting.ccc(level), base, reset)
            for level in LEVELS
            for base in ("ETA", "ROID")
            for reset in ("never", "ASR", "asr-mean-of-softmax")
        )
        return source_line.with_source(setting, wanted)

    def accepts(self, run: Run) -> bool:
        policy = asr_of(run.experiment)
        if policy is None:
            return run.experiment.reset.name == "never"
        return not exchanged(policy) - {"measure"} and _measure(run) in (USUAL, OTHER)

    def evaluate(self, runs: list[Run]) -> Finding:
        runs, sources = source_line.apart(runs)
        all_scores = _meeting(scores.scores(runs))
        title = "Accuracy by ASR's measure of concentration, %"
        sheet = scores.sheet("measures", title, all_scores, sources=sources)
        remarks = (*_remarks(all_scores), paired.WHISKERS.format("no reset"))
        return Finding({"runs": scores.frame(all_scores)}, (sheet,), lambda: _draw(all_scores, sources), remarks)


def _meeting(all_scores: Sequence[Score]) -> list[Score]:
    """Of a large set, the methods and streams where the two measures meet; all when they do nowhere."""
    met = {(score.first.base, score.first.stream) for score in all_scores if _measure(score.first.run) == OTHER}
    return [score for score in all_scores if not met or (score.first.base, score.first.stream) in met]


def _measure(run: Run) -> str:
    policy = asr_of(run.experiment)
    return "" if policy is None else str(policy.measure_settings["name"])


def _remarks(all_scores: Sequence[Score]) -> list[str]:
    """The two measures against each other, and the second against no reset, everywhere they meet."""
    remarks, verdicts = [], []
    by = {
        (score.first.base, score.first.stream, _measure(score.first.run) or score.first.add_on): score
        for score in all_scores
    }
    for (base, stream, measure), score in by.items():
        other, never = by.get((base, stream, OTHER)), by.get((base, stream, NO_RESET))
        if measure != USUAL or other is None:
            continue
        difference = paired.over(score.runs, other.runs)
        verdicts.append(difference.verdict)
        told = f"{base}, {stream}: the softmax of the mean over the mean of softmaxes {paired.told(difference)}"
        if never is not None:
            told += f"; the mean of softmaxes over no reset {paired.told(paired.over(other.runs, never.runs))}"
        remarks.append(f"{told}.")
    if verdicts:
        remarks.append(
            f"In the paper the softmax of the mean is the better measure; here it is "
            f"{paired.counted(verdicts, 'better', 'worse')} of {len(verdicts)} cases."
        )
    return remarks


def _draw(all_scores: Sequence[Score], sources: Sources) -> Figure:
    bases = list(dict.fromkeys(score.first.base for score in all_scores))[:COLUMNS]
    streams = list(dict.fromkeys(score.first.stream for score in all_scores))
    names = scores.add_ons(all_scores)
    width = scores.size(len(bases), len(streams) * len(names))
    drawn, axes = figure.panels(1, len(bases), width=width, height=2.5, sharey=True)
    for axis, base in zip(axes[0], bases, strict=True):
        scores.bars(axis, [score for score in all_scores if score.first.base == base], streams, names, sources)
        axis.set_title(base)
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].set_ylabel("accuracy, %")
    figure.legend(drawn, axes[0])
    return drawn
