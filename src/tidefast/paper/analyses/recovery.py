"""What is kept between visits, with knowledge recovery and without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidefast.bench.experiment import Experiment
from tidefast.bench.metrics import Floats
from tidefast.bench.results import Run
from tidefast.paper import figure, paired, source_line, visits
from tidefast.paper.analysis import Analysis, Finding, registry
from tidefast.paper.naming import heading
from tidefast.paper.scale import Setting
from tidefast.paper.source_line import Sources
from tidefast.paper.study import asr_of, exchanged
from tidefast.paper.visits import Course, Panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VISITS = (1, 10, 15, 20)


@registry.register("recovery")
class Recovery(Analysis):
    """Does the recovery term bring back what resets took?"""

    title = "Accuracy and knowledge recovery visit by visit, with ASR's recovery term and without"
    paper = ("table 11", "table 12")

    def experiments(self, setting: Setting) -> list[Experiment]:
        wanted = (
            setting.experiment(setting.in_c(), base, reset)
            for base in ("ETA", "ROID")
            for reset in ("never", "ASR", "asr-no-recovery")
        )
        return source_line.with_source(setting, wanted)

    def accepts(self, run: Run) -> bool:
        policy = asr_of(run.experiment)
        if policy is None:
            return visits.recurs(run) and run.experiment.reset.name in ("never", "periodic")
        return visits.recurs(run) and exchanged(policy) <= {"accumulation"}

    def evaluate(self, runs: list[Run]) -> Finding:
        runs, sources = source_line.apart(runs)
        by_panel = visits.courses(runs, _without)
        notes = (
            "Mean over domains of the accuracy minus the best at an earlier visit, in points; below 0 is forgetting.",
            "The best of many visits is high by chance too, the more so the fewer their images.",
        )
        sheets = (
            visits.sheet("recovery-accuracy", "Accuracy per visit, %", by_panel, VISITS, _accuracy),
            visits.sheet(
                "recovery",
                "Knowledge recovery per visit",
                by_panel,
                VISITS,
                _recovery,
                decimals=2,
                signed=True,
                notes=notes,
            ),
        )
        remarks = [remark for met in by_panel.values() for remark in _remarks(met)]
        return Finding(
            {"visits": visits.frame(by_panel)},
            sheets,
            lambda: _draw(by_panel, sources),
            (*remarks, *visits.caveats(by_panel)),
        )


def _without(run: Run) -> bool:
    """Whether a run has ASR's resets and no recovery."""
    policy = asr_of(run.experiment)
    return policy is not None and not policy.recovers


def _accuracy(course: Course) -> Floats:
    return course.accuracy


def _recovery(course: Course) -> Floats:
    return course.recovery


def _remarks(met: Sequence[Course]) -> list[str]:
    """With recovery against without, for one method at one place."""
    remarks = []
    policies = [(course, asr_of(course.named_run.run.experiment)) for course in met]
    kept = [course for course, policy in policies if policy and policy.recovers and not exchanged(policy)]
    lost = [course for course in met if _without(course.named_run.run)]
    for with_, without in ((a, b) for a in kept for b in lost):
        ends, others = float(with_.accuracy[-1]), float(without.accuracy[-1])
        difference = paired.over([with_.named_run.run], [without.named_run.run])
        remarks.append(
            f"{with_.named_run.title}: {with_.mean:.1f} with recovery and {without.mean:.1f} without in the mean of "
            f"the visits, {paired.told(difference)}; {ends:.1f} and {others:.1f} at the last."
        )
        gain, loss = with_.recovery.mean(), without.recovery.mean()
        as_said = [gain > 0, loss < 0]
        holds = {2: "both hold here", 1: f"only the {'first' if as_said[0] else 'second'} holds here"}
        remarks.append(
            f"Knowledge recovery of {with_.named_run.title} is {gain:+.2f} in the mean with recovery and {loss:+.2f} "
            f"without. In the paper it is positive with and negative without: "
            f"{holds.get(sum(as_said), 'neither holds here')}."
        )
    return remarks


def _draw(by_panel: Panels, sources: Sources) -> Figure:
    chosen, names = visits.shown(by_panel), visits.add_ons(visits.shown(by_panel))
    drawn, axes = figure.panels(len(chosen), 2, height=2.1, sharex="row", sharey="col")
    for (left, right), (panel, met) in zip(axes, chosen.items(), strict=True):
        visits.plot(left, met, _accuracy, names, sources)
        visits.plot(right, met, _recovery, names)
        right.axhline(0, color=figure.GREY, lw=0.6, zorder=1)
        left.set_title(heading(panel, chosen))
        right.set_title(heading(panel, chosen))
        left.set_ylabel("accuracy, %")
        right.set_ylabel("knowledge\nrecovery, points")
    for axis in axes[-1]:
        axis.set_xlabel("visit")
    figure.legend(drawn, axes.ravel())
    return drawn
