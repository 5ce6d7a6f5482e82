"""Groups of CIFAR corruptions of even difficulty, cycled: accuracy in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.paper import figure, paired, scores, source_line
from tidefast.paper.analysis import Analysis, Finding, registry
from tidefast.paper.scale import LEVELS, Setting
from tidefast.paper.scores import Score
from tidefast.paper.source_line import Sources
from tidefast.paper.study import asr_of, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS = {"cifar10-c": "CIFAR-10-C", "cifar100-c": "CIFAR-100-C"}
MINI = "-mini"
COLUMNS = 3
"""At most so many base methods are drawn."""
_NOTE = "The bundled images are CIFAR-10's in both cases: only the groups of corruptions are those of CIFAR-100-C."


@registry.register("groups")
class Groups(Analysis):
    """Does ASR help on easy, medium and hard corruptions alike?"""

    title = "Accuracy on the easy, medium and hard groups of CIFAR-10-C and CIFAR-100-C corruptions"
    paper = ("figure cifar10", "figure cifar100")

    def experiments(self, setting: Setting) -> list[Experiment]:
        wanted = (
            setting.experiment(setting.cifar(classes, group), base, reset)
            for classes in (10, 100)
            for group in LEVELS
            for base in ("ETA", "ROID")
            for reset in ("never", *setting.rdumbs, "ASR")
        )
        return source_line.with_source(setting, wanted)

    def accepts(self, run: Run) -> bool:
        return _set(run) in SETS and plain(run.experiment, "periodic")

    def evaluate(self, runs: list[Run]) -> Finding:
        runs, sources = source_line.apart(runs)
        by_set = {
            name: part
            for key, name in SETS.items()
            if (part := _by_level(scores.scores([run for run in runs if _set(run) == key])))
        }
        small = any(run.experiment.stream.name.endswith(MINI) and _set(run) == "cifar100-c" for run in runs)
        sheets = [
            scores.sheet(
                f"groups-{name.lower()}", f"Accuracy in groups of {name}, %", part, [_NOTE][: small and at], sources
            )
            for at, (name, part) in enumerate(by_set.items())
        ]
        frames = {name.lower(): scores.frame(part) for name, part in by_set.items()}
        remarks = [remark for name, part in by_set.items() for remark in _remarks(name, part)]
        remarks.append(paired.WHISKERS.format("no reset"))
        return Finding(frames, (*sheets,), lambda: _draw(by_set, small, sources), (*remarks,))


def _set(run: Run) -> str:
    return run.experiment.stream.name.removesuffix(MINI)


def _by_level(all_scores: Sequence[Score]) -> list[Score]:
    """Easy before medium before hard."""

    def level(score: Score) -> int:
        group = score.first.run.experiment.stream.options.get("group", LEVELS[0])
        return LEVELS.index(group)

    return sorted(all_scores, key=level)


def _remarks(name: str, all_scores: Sequence[Score]) -> list[str]:
    """Where ASR leads among the forms of one method."""
    remarks = []
    for base in dict.fromkeys(score.first.base for score in all_scores):
        streams = dict.fromkeys(score.first.stream for score in all_scores)
        verdicts, nearest = [], []
        for stream in streams:
            here = [score for score in all_scores if (score.first.base, score.first.stream) == (base, stream)]
            ours = next((score for score in here if asr_of(score.first.run.experiment)), None)
            differences = [paired.over(ours.runs, score.runs) for score in here if ours and score is not ours]
            if not differences:
                continue
            verdicts.append(paired.over_all(differences))
            nearest.append(f"{stream} {paired.told(min(differences, key=lambda difference: difference.points))}")
        if verdicts:
            remarks.append(
                f"{name}: ASR against the other forms of {base} is "
                f"{paired.counted(verdicts, 'above all of them', 'below one')} of {len(verdicts)} groups; "
                f"against the best of them: {'; '.join(nearest)}."
            )
    return remarks


def _draw(by_set: dict[str, list[Score]], small: bool, sources: Sources) -> Figure:
    every = [score for part in by_set.values() for score in part]
    bases = list(dict.fromkeys(score.first.base for score in every))[:COLUMNS]
    names = scores.add_ons(every)
    groups = max(len({score.first.stream for score in part}) for part in by_set.values())
    width = scores.size(len(bases), groups * len(names))
    drawn, axes = figure.panels(len(by_set), len(bases), width=width, height=2.2, sharey=True)
    for row, (name, part) in zip(axes, by_set.items(), strict=True):
        streams = list(dict.fromkeys(score.first.stream for score in part))
        for axis, base in zip(row, bases, strict=True):
            scores.bars(axis, [score for score in part if score.first.base == base], streams, names, sources)
            images = ", images of CIFAR-10" if small and name == SETS["cifar100-c"] else ""
            axis.set_title(f"{base}, groups of {name}{images}")
        row[0].set_ylabel("accuracy, %")
    for row in axes:
        row[0].set_ylim(bottom=0)
    figure.legend(drawn, axes.ravel())
    return drawn
