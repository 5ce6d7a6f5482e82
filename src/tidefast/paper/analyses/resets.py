"""What resets cost: accuracy before and after, and the time until it is back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.core.specification import Specification
from tidefast.paper import figure, naming, source_line
from tidefast.paper.analysis import Analysis, Finding, frame, registry
from tidefast.paper.figure import line_styles
from tidefast.paper.reset_effects import AFTER, BEFORE, BIN, MIDDLES, Effects, effects_of, mean_around
from tidefast.paper.scale import Setting
from tidefast.paper.source_line import Sources
from tidefast.paper.study import accuracy
from tidefast.report.sheet import Row, Sheet, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 6
"""At most so many contestants are drawn."""
LEAST = 4
"""Fewer detrimental resets decide nothing."""
FEW = 15
"""Up to so many resets are dotted lines; more are ticks."""
_COLUMNS = (
    "accuracy, %",
    "resets",
    "batches per reset",
    "depth, %",
    "detrimental, %",
    "of pseudo-resets, %",
    "loss, points",
    "beneficial, %",
    "gain, points",
    "by chance, points",
    "recovery delay, batches",
)


@registry.register("resets")
class Resets(Analysis):
    """How much does a reset cost, and for how long?"""

    title = "Accuracy around resets: the drop, and the batches until it is made up for"
    paper = ("figure ours_vs_rdumb", "appendix: limitations of full-parameter reset")

    def experiments(self, setting: Setting) -> list[Experiment]:
        policies = ("never", *setting.rdumbs, "ASR", "asr-full", "asr-interval-20000")
        return source_line.with_source(
            setting, (setting.experiment(setting.ccc("hard"), "ETA", policy) for policy in policies)
        )

    def accepts(self, run: Run) -> bool:
        return bool(len(run.resets)) or source_line.is_source(run)

    def evaluate(self, runs: list[Run]) -> Finding:
        runs, sources = source_line.apart(runs)
        effects = {name: effects_of(members) for name, members in naming.pooled(runs).items()}
        sheet = Sheet(
            "resets",
            "What resets do" + naming.where(runs),
            "contestant",
            _COLUMNS,
            tuple(Row(name, _cells(effect)) for name, effect in effects.items()),
            (
                "Effect of a reset: mean accuracy of the ten batches after it minus that of the ten before, or of as "
                "many as there are to the neighbouring resets; one without any change is neither.",
                f"Pseudo-resets: {metrics.SHIFT} batches after each reset, where there was none; a share of "
                "detrimental resets that is no larger than theirs is chance.",
                "By chance: the loss, and the gain, that would be seen if resets had no effect, as two times ten "
                "batches have different images.",
                "Recovery delay: after a detrimental reset, batches until the best accuracy of the ten before is "
                "reached again; the batches to the next reset, or to the end, if it is not.",
            ),
        )
        drawn = [name for name, effect in effects.items() if effect.count]
        chosen = {name: effects[name] for name in naming.featured(drawn, SHOWN)}
        pair = _pair(chosen)
        pair += _without_resets(effects, pair[:1])
        return Finding(
            {"resets": _resets(effects), "around": _around(effects)},
            (sheet,),
            lambda: _draw(chosen, {name: effects[name].runs[0] for name in pair}, sources),
            (*_remarks(effects, chosen),),
        )


def _cells(effect: Effects) -> tuple[Any, ...]:
    measured = effect.measured
    return (
        number(float(np.mean([accuracy(run) for run in effect.runs]))),
        number(effect.count, 0),
        number(metrics.batches_per_reset(sum(run.batches for run in effect.runs), effect.count)),
        number(100 * effect.depth, 0),
        number(100 * measured.detrimental_share, 0),
        number(100 * effect.pseudo.detrimental_share, 0),
        number(100 * measured.detrimental_mean, 2, signed=True),
        number(100 * measured.beneficial_share, 0),
        number(100 * measured.beneficial_mean, 2, signed=True),
        number(100 * effect.chance, 2),
        number(measured.recovery_delay),
    )


def _resets(effects: dict[str, Effects]) -> dict[str, list[Any]]:
    rows = [
        (
            name,
            effect.runs[at].experiment.seed,
            t,
            float(effect.runs[at].reset_fraction[t]),
            float(change),
            float(delay),
        )
        for name, effect in effects.items()
        for (at, t), change, delay in zip(
            effect.of.tolist(), effect.measured.change, effect.measured.delay, strict=True
        )
    ]
    return frame(("contestant", "seed", "batch", "depth", "change", "delay"), rows)


def _around(effects: dict[str, Effects]) -> dict[str, list[Any]]:
    rows = [
        (name, int(middle), float(mean), float(error), int(count))
        for name, effect in effects.items()
        for middle, mean, error, count in zip(MIDDLES, *mean_around(effect.around), strict=True)
        if np.isfinite(mean)
    ]
    return frame(("contestant", "batch", "accuracy", "standard_error", "resets"), rows)


def _but_for_the_policy(effect: Effects) -> str:
    return dataclasses.replace(effect.runs[0].experiment, reset=Specification("never"), seed=0).digest


def _pairs(effects: dict[str, Effects]) -> list[tuple[str, str]]:
    """RDumb and ASR that differ in nothing else."""

    def of(policy: str) -> dict[str, str]:
        names: dict[str, str] = {}
        for name, effect in effects.items():
            reset = effect.runs[0].experiment.reset
            plain = not reset.options.keys() & {"when", "extent", "measure", "target"}
            if reset.name == policy and plain:
                names.setdefault(_but_for_the_policy(effect), name)
        return names

    naive, adaptive = of("periodic"), of("asr")
    return [(name, adaptive[key]) for key, name in naive.items() if key in adaptive]


def _pair(effects: dict[str, Effects]) -> list[str]:
    """The two to compare over the whole stream: RDumb and ASR, else the first two on one stream."""
    if pairs := _pairs(effects):
        return list(pairs[0])
    first = next(iter(effects), None)
    if first is None:
        return []
    place = effects[first].runs[0].experiment.stream
    return [name for name, effect in effects.items() if effect.runs[0].experiment.stream == place][:2]


def _without_resets(effects: dict[str, Effects], like: list[str]) -> list[str]:
    """The same method on the same stream without resets."""
    wanted = {_but_for_the_policy(effects[name]) for name in like}
    return [name for name, effect in effects.items() if not effect.count and _but_for_the_policy(effect) in wanted][:1]


def _remarks(effects: dict[str, Effects], chosen: dict[str, Effects]) -> list[str]:
    return [*(_costs(name, effect) for name, effect in chosen.items()), *_comparisons(effects)]


def _costs(name: str, effect: Effects) -> str:
    measured = effect.measured
    if not measured.detrimental_share > 0:
        return f"{name}: none of {len(measured.change)} resets is detrimental."
    gain = f"; beneficial ones gain {100 * measured.beneficial_mean:.1f}" if measured.beneficial_share else ""
    return (
        f"{name}: {100 * measured.detrimental_share:.0f} % of {len(measured.change)} resets are detrimental and cost "
        f"{-100 * measured.detrimental_mean:.1f} points{gain}; chance alone makes {100 * effect.chance:.1f}. "
        f"Accuracy is back after {measured.recovery_delay:.0f} batches. Of pseudo-resets "
        f"{100 * effect.pseudo.detrimental_share:.0f} % are."
    )


def _comparisons(effects: dict[str, Effects]) -> list[str]:
    pairs = _pairs(effects)
    both = [
        (naive, adaptive)
        for naive, adaptive in pairs
        if all(effects[name].measured.detrimental_share > 0 for name in (naive, adaptive))
    ]
    remarks = []
    if len(both) < len(pairs):
        remarks.append(
            f"{len(pairs) - len(both)} of {len(pairs)} comparisons of RDumb with ASR cannot be made: one of the two "
            "has no detrimental reset."
        )
    if len(both) > 1:
        measured = [(effects[naive].measured, effects[adaptive].measured) for naive, adaptive in both]
        cheaper = sum(old.detrimental_mean < new.detrimental_mean for old, new in measured)
        faster = sum(old.recovery_delay > new.recovery_delay for old, new in measured)
        remarks.append(
            f"ASR's detrimental resets cost less than RDumb's in {cheaper} of {len(both)} comparisons, and recovery "
            f"is faster in {faster}."
        )
    if len(both) == 1:
        naive, adaptive = both[0]
        old, new = effects[naive].measured, effects[adaptive].measured
        lost = [of.change[of.change < 0] for of in (new, old)]
        waits = [of.delay[np.isfinite(of.delay)] for of in (new, old)]
        remarks += [
            f"Detrimental resets cost {adaptive} {-100 * new.detrimental_mean:.1f} points, {naive} "
            f"{-100 * old.detrimental_mean:.1f}: that ASR's cost less {_verdict(-lost[0], -lost[1])} here.",
            f"Recovery takes {adaptive} {new.recovery_delay:.0f} batches, {naive} {old.recovery_delay:.0f}: that ASR's "
            f"is faster {_verdict(*waits)} here.",
        ]
    return remarks


def _verdict(ours: metrics.Floats, theirs: metrics.Floats) -> str:
    """Whether resets of the first kind have less of something: by the interval of 95 % when both are drawn anew."""
    if min(len(ours), len(theirs)) < LEAST:
        return "is undecided"
    rng = np.random.default_rng(0)
    drawn = [of[rng.integers(len(of), size=(2000, len(of)))].mean(axis=1) for of in (theirs, ours)]
    low, high = np.quantile(drawn[0] - drawn[1], (0.025, 0.975))
    return "holds" if low > 0 else "does not hold" if high < 0 else "is undecided"


def _draw(effects: dict[str, Effects], stream: dict[str, Run], sources: Sources) -> Figure:
    drawn, axes = figure.panels(2, 2, height=2.1)
    for axis in axes[0]:
        axis.remove()
    whole = drawn.add_subplot(axes[0, 0].get_gridspec()[0, :])
    looks = line_styles(list(dict.fromkeys([*stream, *effects])))
    _draw_stream(whole, stream, looks, source_line.level([*stream.values()][:1], sources))
    _draw_around(axes[1, 0], effects, looks)
    _draw_delays(axes[1, 1], effects, looks)
    figure.letter([whole, *axes[1]])
    lines = {str(line.get_label()): line for axis in (whole, axes[1, 0]) for line in axis.lines}
    lines = {name: lines[name] for name in (*looks, source_line.LABEL) if name in lines}
    drawn.legend(handles=[*lines.values()], loc="outside lower center", ncols=5 if len("".join(lines)) < 65 else 3)
    return drawn


def _draw_stream(
    axes: Axes, runs: dict[str, Run], looks: dict[str, dict[str, Any]], source: float | None = None
) -> None:
    ticks, window = 0, max((run.batches for run in runs.values()), default=0) // 50 or 1
    for name, run in runs.items():
        resets, colour = run.resets + 0.5, looks[name]["color"]
        axes.plot(100 * run.smooth_accuracy(window), label=name, **looks[name])
        if len(resets) <= FEW:
            for t in resets:
                axes.axvline(t, color=colour, linestyle=":", linewidth=0.9)
        else:
            height = np.full(len(resets), 0.03 + 0.06 * ticks)
            axes.plot(resets, height, "|", color=colour, transform=axes.get_xaxis_transform(), markersize=5)
            ticks += 1
    source_line.draw(axes, source)
    axes.margins(x=0.01)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.1 * ticks * (high - low), high)
    mean = f", mean of {window} batches" if window > 1 else ""
    axes.set(xlabel=f"batch{mean} (dotted lines and ticks: resets)", ylabel="accuracy, %")


def _draw_around(axes: Axes, effects: dict[str, Effects], looks: dict[str, dict[str, Any]]) -> None:
    for name, effect in effects.items():
        mean, error, _ = mean_around(effect.around)
        axes.plot(MIDDLES, 100 * mean, label=name, marker="o", markersize=2.5, **looks[name])
        axes.fill_between(
            MIDDLES, 100 * (mean - error), 100 * (mean + error), color=looks[name]["color"], alpha=0.15, linewidth=0
        )
    axes.axvline(0.5, color=figure.GREY, linestyle=":", linewidth=0.9)
    axes.set(xlabel=f"batches after the reset, mean of {BIN}", ylabel="accuracy, %", xlim=(-BEFORE, AFTER + 1))


def _draw_delays(axes: Axes, effects: dict[str, Effects], looks: dict[str, dict[str, Any]]) -> None:
    delays = {
        name: np.sort(effect.measured.delay[np.isfinite(effect.measured.delay)]) for name, effect in effects.items()
    }
    longest = max((float(waits[-1]) for waits in delays.values() if len(waits)), default=1.0)
    end = longest * (1.4 if longest > 100 else 1.05)
    if longest > 100:
        axes.set_xscale("symlog", linthresh=10, linscale=0.5)
    for name, waits in delays.items():
        if len(waits):
            shares = 100 * np.arange(len(waits) + 1) / len(waits)
            axes.step([0.0, *waits, end], [*shares, 100.0], where="post", **looks[name])
    axes.set(xlabel="batches until accuracy is back", ylabel="detrimental resets, %", ylim=(0, 103), xlim=(0, end))
    if without := [name for name, waits in delays.items() if not len(waits)]:
        text = "\n".join(["no detrimental reset:", *without])
        axes.text(0.98, 0.05, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=7)
