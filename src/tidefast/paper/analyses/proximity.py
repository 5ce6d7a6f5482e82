"""What it costs to reset late: ASR with a margin that concentration must exceed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidefast.bench.experiment import Experiment
from tidefast.bench.metrics import PairedDifference
from tidefast.bench.results import Run
from tidefast.paper import figure, paired, source_line, visits
from tidefast.paper.analysis import Analysis, Finding, registry
from tidefast.paper.naming import NO_RESET, heading
from tidefast.paper.scale import Setting
from tidefast.paper.source_line import Sources
from tidefast.paper.study import asr_of, exchanged, reset_count
from tidefast.paper.visits import Course, Panels
from tidefast.report.sheet import Cell, number
from tidefast.resets.asr.triggers import Adaptive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VISITS = (1, 5, 10, 15, 20)


@registry.register("proximity")
class Proximity(Analysis):
    """Are parameters from shortly before a reset worth keeping?"""

    title = "Accuracy per visit when ASR's resets come late: the risk of keeping parameters from near a reset"
    paper = ("table 9",)

    def experiments(self, setting: Setting) -> list[Experiment]:
        wanted = (
            setting.experiment(setting.in_c(), base, reset)
            for base in ("ETA", "ROID")
            for reset in ("never", "asr-delay-0.001", "asr-delay-0.01", "ASR")
        )
        return source_line.with_source(setting, wanted)

    def accepts(self, run: Run) -> bool:
        return visits.recurs(run) and (run.experiment.reset.name == "never" or _delay(run) is not None)

    def evaluate(self, runs: list[Run]) -> Finding:
        runs, sources = source_line.apart(runs)
        by_panel = visits.courses(runs, lambda run: bool(_delay(run)))
        sheet = visits.sheet(
            "proximity",
            "Accuracy per visit, %, when a reset waits until concentration is above the threshold by a delay",
            by_panel,
            VISITS,
            lambda course: course.accuracy,
            first={"delay": lambda course: _cell(course.named_run.run), "resets": _resets},
        )
        remarks = [remark for met in by_panel.values() for remark in _remarks(met)]
        return Finding(
            {"visits": visits.frame(by_panel)},
            (sheet,),
            lambda: _draw(by_panel, sources),
            (*remarks, *visits.caveats(by_panel)),
        )


def _delay(run: Run) -> float | None:
    """The delay of a run's resets; None when they are not ASR's, or another part of ASR is exchanged too."""
    policy = asr_of(run.experiment)
    if policy is None or not exchanged(policy) <= {"when"}:
        return None
    trigger = policy.when
    return trigger.delay if isinstance(trigger, Adaptive) and trigger.factor == 1.0 else None


def _cell(run: Run) -> Cell:
    delay = _delay(run)
    return Cell() if delay is None else Cell(f"{delay:g}", delay)


def _resets(course: Course) -> Cell:
    return number(reset_count(course.named_run.run), 0)


def _remarks(met: Sequence[Course]) -> list[str]:
    """Each delay against none, and against the method without resets."""
    delays = {course: delay for course in met if (delay := _delay(course.named_run.run)) is not None}
    prompt = [course for course, delay in delays.items() if delay == 0]
    never = [course for course in met if course.named_run.add_on == NO_RESET]
    remarks = []
    for standard in prompt:
        late = sorted((course for course in delays if delays[course] > 0), key=lambda course: delays[course])
        if late:
            changes = [_over(course, standard) for course in late]
            told = "; ".join(
                f"delay {delays[course]:g} {paired.told(change)}" for course, change in zip(late, changes, strict=True)
            )
            verdicts = paired.counted([change.verdict for change in changes], "better", "worse, as in the paper,")
            remarks.append(
                f"{standard.named_run.title}, has {standard.mean:.1f} in the mean of the visits; by resets that come "
                f"late it changes: {told}. That is {verdicts}, of {len(late)} delays."
            )
        remarks += [
            f"With delay {delays[course]:g} over {plain.named_run.title}, without resets: "
            f"{paired.told(_over(course, plain))}."
            for plain in never
            for course in late[-1:]
        ]
    return remarks


def _over(course: Course, other: Course) -> PairedDifference:
    return paired.over([course.named_run.run], [other.named_run.run])


def _draw(by_panel: Panels, sources: Sources) -> Figure:
    chosen, names = visits.shown(by_panel), visits.add_ons(visits.shown(by_panel))
    wide = min(2, len(chosen))
    high = -(-len(chosen) // wide)
    drawn, axes = figure.panels(high, wide, width=figure.PAGE if wide > 1 else figure.COLUMN * 1.2, sharey=True)
    for axis, (panel, met) in zip(axes.ravel(), chosen.items(), strict=False):
        visits.plot(axis, met, lambda course: course.accuracy, names, sources)
        axis.set_title(heading(panel, chosen))
        axis.set_xlabel("visit")
    for axis in axes.ravel()[len(chosen) :]:
        axis.set_visible(False)
    for row in axes:
        row[0].set_ylabel("accuracy, %")
    figure.legend(drawn, axes.ravel())
    return drawn
