"""What the guard promises, judged on a grid: pass or fail, with ASR, RDumb, AETTA and the plain method beside it.

    tidefast sweep benchmarks/guard.yaml --out runs/guard --jobs 2
    python benchmarks/guard.py runs/guard
    python benchmarks/guard.py benchmarks/results/guard.csv                 # from what is committed
    python benchmarks/guard.py runs/guard benchmarks/results/guard.csv      # what is committed, and newer runs

With runs it writes benchmarks/results/guard.csv and the figures of docs/guard.md too. Sudden failures and other
settings of the guard are tried by benchmarks/guard_trials.py.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from tidefast import bench

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "guard.csv"
IMAGES = ROOT / "docs" / "images"
WINDOW = 100
"""Batches over which what canaries say is compared with what is true."""
POLICIES = {"never": "plain", "periodic": "+ RDumb", "asr": "+ ASR", "aetta": "+ AETTA", "guard": "+ guard"}
PUBLISHED = "1"
FLOOR, KEPT, CELLS_KEPT, QUIET = 1.0, 0.5, 0.9, 1.0
"""Points below the reference; points below the best; share of cells; resets in 1,000 batches."""


@dataclass(frozen=True)
class Trial:
    """One run of the grid."""

    model: str
    stream: str
    batch: int
    seed: int
    steps: int
    method: str
    rate: str
    policy: str
    accuracy: float
    """In percent."""
    resets: int

    @property
    def identity(self) -> tuple[object, ...]:
        """What was tried, whatever came of it."""
        return *self.place, self.method, self.rate, self.policy

    @property
    def place(self) -> tuple[object, ...]:
        """Where it was tried."""
        return self.model, self.stream, self.batch, self.seed, self.steps


@dataclass(frozen=True)
class Cell:
    """A place, a method and a rate: what each policy made of it, in points over the reference."""

    place: tuple[object, ...]
    method: str
    rate: str
    reference: float
    trained: float
    """Accuracy of the source as it was trained."""
    gains: dict[str, float]
    resets: dict[str, int]

    @property
    def batches(self) -> int:
        """How long it was."""
        return int(str(self.place[-1]))


def main(*given: str) -> None:
    """Print verdicts, the worst cells and the whole table, as Markdown: of folders of runs, of the table, or both."""
    runs = {
        trial_of(run): run for folder in given if not _is_table(folder) for run in bench.find(folder) if run.complete
    }
    stored = {trial for path in given if _is_table(path) for trial in read_trials(Path(path))}
    newer = {trial.identity for trial in runs}
    trials = [*runs, *(trial for trial in stored if trial.identity not in newer)]
    cells = _cells(trials)
    if runs:
        _write(trials)
        _draw(cells)
        _draw_leads(runs)
    _print_verdicts(cells)
    print(f"\nThe ten worst of {len(cells)} cells:\n")
    _print_table(sorted(cells, key=lambda cell: cell.gains["guard"])[:10])
    print("\nAll of them:\n")
    _print_table(cells)


def trial_of(run: bench.Run) -> Trial:
    """What a run of the grid came to."""
    experiment = run.experiment
    return Trial(
        model=experiment.model.name,
        stream=experiment.stream.title,
        batch=experiment.batch or 0,
        seed=experiment.seed,
        steps=run.batches,
        method=experiment.method.title or experiment.method.name,
        rate="" if experiment.optimizer is None else experiment.optimizer.title,
        policy=experiment.reset.name,
        accuracy=round(100 * run.accuracy, 3),
        resets=len(run.resets),
    )


def _is_table(given: str) -> bool:
    return given.endswith(".csv")


def _write(trials: list[Trial]) -> None:
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Trial))
        writer.writerows(astuple(trial) for trial in sorted(trials, key=astuple))


def read_trials(path: Path) -> list[Trial]:
    """Those of a table."""
    kinds = {"batch": int, "seed": int, "steps": int, "accuracy": float, "resets": int}
    with path.open(encoding="utf-8") as lines:
        return [
            Trial(**{name: kinds.get(name, str)(value) for name, value in row.items()}) for row in csv.DictReader(lines)
        ]


def _cells(trials: list[Trial]) -> list[Cell]:
    """Those that the guard was tried on; the reference is batch statistics, or the source where there are none."""
    trained, batch = (
        {trial.place: trial.accuracy for trial in trials if trial.method == name} for name in ("source", "batchnorm")
    )
    references = trained | batch
    groups: dict[tuple[tuple[object, ...], str, str], list[Trial]] = {}
    for trial in trials:
        if trial.method not in ("source", "batchnorm"):
            groups.setdefault((trial.place, trial.method, trial.rate), []).append(trial)
    return [
        Cell(
            place,
            method,
            rate,
            references[place],
            trained[place],
            {trial.policy: trial.accuracy - references[place] for trial in group},
            {trial.policy: trial.resets for trial in group},
        )
        for (place, method, rate), group in groups.items()
        if any(trial.policy == "guard" for trial in group)
    ]


def _print_verdicts(cells: list[Cell]) -> None:
    print("| | " + " | ".join(POLICIES.values()) + " | the guard |")
    print("| --- |" + " ---: |" * len(POLICIES) + " --- |")
    below = {name: [c.gains[name] < -FLOOR for c in cells if name in c.gains] for name in POLICIES}
    _line(
        f"floor: cells more than {FLOOR:g} point below the reference",
        {name: _of(hits) for name, hits in below.items()},
        not any(below["guard"]),
    )
    worst = {name: min((c.gains[name] for c in cells if name in c.gains), default=np.nan) for name in POLICIES}
    _line("the worst of them", {name: "-" if np.isnan(gain) else f"{gain:+.1f}" for name, gain in worst.items()}, None)
    lower = {
        name: [c.gains[name] < max(0.0, c.trained - c.reference) - FLOOR for c in cells if name in c.gains]
        for name in POLICIES
    }
    _line(
        "cells more than that below the better of batch statistics and the source as it was trained",
        {name: _of(hits) for name, hits in lower.items()},
        None,
    )
    published = [c for c in cells if c.rate == PUBLISHED and all(n in c.gains for n in ("never", "periodic", "asr"))]
    kept = {
        name: [
            c.gains[name] >= max(c.gains[n] for n in ("never", "periodic", "asr")) - KEPT
            for c in published
            if name in c.gains
        ]
        for name in POLICIES
    }
    _line(
        f"gain kept: cells at the published rate within {KEPT:g} of the best of plain, RDumb, ASR",
        {name: _of(hits) for name, hits in kept.items()},
        bool(kept["guard"]) and np.mean(kept["guard"]) >= CELLS_KEPT,
    )
    # A policy that most cells lack would decide which cells count.
    tried = {name for name in POLICIES if 2 * sum(name in c.gains for c in cells) > len(cells)}
    everywhere = [c for c in cells if c.gains.keys() >= tried]
    means = {name: float(np.mean([c.gains[name] for c in everywhere])) for name in tried}
    _line(
        f"mean over the {len(everywhere)} cells where all of them were tried",
        {name: f"{means[name]:+.2f}" if name in means else "-" for name in POLICIES},
        means["guard"] > max(value for name, value in means.items() if name != "guard"),
    )
    calm = [
        c for c in cells if c.place[1] in ("Clean", "Easy") and c.rate == PUBLISHED and c.gains.get("never", -9) > -KEPT
    ]
    # A method's own resets (SAR's) are not a policy's.
    alarms = {
        name: [(c.resets[name] - c.resets["never"], c.batches) for c in calm if name in c.resets]
        for name in POLICIES
        if name != "never"
    }
    often = {name: [1000 * resets / batches for resets, batches in pairs] for name, pairs in alarms.items() if pairs}
    _line(
        f"quiet: resets in 1,000 batches, mean and most, over {len(calm)} clean and easy cells where plain holds",
        {name: f"{np.mean(often[name]):.1f}, {max(often[name]):.0f}" if name in often else "-" for name in POLICIES},
        "guard" in often and np.mean(often["guard"]) <= QUIET,
    )
    between = {name: np.sum(pairs, axis=0) for name, pairs in alarms.items() if pairs}
    _line(
        "mean batches between false alarms, in the same cells",
        {name: _interval(*between[name]) if name in between else "-" for name in POLICIES},
        None,
    )


def _interval(resets: int, batches: int) -> str:
    return f"{batches / resets:,.0f}" if resets > 0 else f"none in {batches:,}"


def _of(hits: list[bool]) -> str:
    return f"{sum(hits)} of {len(hits)}" if hits else "-"


def _line(what: str, values: dict[str, str], passed: bool | None) -> None:
    verdict = "" if passed is None else "**pass**" if passed else "**fail**"
    print(f"| {what} | " + " | ".join(values.values()) + f" | {verdict} |")


def _print_table(cells: list[Cell]) -> None:
    print("| network | stream | batch | method | rate | reference, % | " + " | ".join(POLICIES.values()) + " |")
    print("| --- | --- | ---: | --- | ---: | ---: |" + " ---: |" * len(POLICIES))
    for cell in cells:
        model, stream, batch, *_ = cell.place
        shown = [
            f"{cell.gains[name]:+.1f}" + (f" ({cell.resets[name]})" if cell.resets[name] else "")
            if name in cell.gains
            else "-"
            for name in POLICIES
        ]
        where = f"{model} | {stream} | {batch} | {cell.method} | {cell.rate}"
        print(f"| {where} | {cell.reference:.1f} | " + " | ".join(shown) + " |")


def _draw(cells: list[Cell]) -> None:
    """Every cell a column, sorted by what the plain method makes of it; the floor drawn in."""
    ordered = sorted(cells, key=lambda cell: cell.gains.get("never", 0.0))
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    for (name, title), mark in zip(POLICIES.items(), "xvs^o", strict=True):
        places = [k for k, cell in enumerate(ordered) if name in cell.gains]
        if not places:
            continue
        strong = {"s": 22, "zorder": 3, "color": "black"} if name == "guard" else {"s": 14, "alpha": 0.7}
        axes.scatter(places, [ordered[k].gains[name] for k in places], marker=mark, label=title, **strong)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.axhline(-FLOOR, color="firebrick", linestyle="--", linewidth=1, label="the floor: 1 point below")
    axes.set(
        xlabel="cells, sorted by the plain method",
        ylabel="points over the network that does not adapt",
        yscale="symlog",
        title="Each cell of the grid: a network, a stream, a method, a rate",
    )
    ticks = [-80, -40, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20]
    axes.set_yticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    axes.legend(ncols=3, fontsize=8, loc="lower right")
    figure.savefig(IMAGES / "guard-grid.png", dpi=130)


def _draw_leads(runs: dict[Trial, bench.Run]) -> None:
    """What canaries said of adapting against what labels say, for every window of every guarded run that has the run
    without adapting beside it."""
    references = {trial.place: run for trial, run in runs.items() if trial.method == "source"}
    references |= {trial.place: run for trial, run in runs.items() if trial.method == "batchnorm"}
    said, true = [], []
    for trial, run in runs.items():
        if trial.policy != "guard" or trial.place not in references:
            continue
        lead = run.steps["correct"] - references[trial.place].steps["correct"]
        canaries = run.steps["agreement"] - run.steps["reference_agreement"]
        for first in range(0, trial.steps - WINDOW + 1, WINDOW):
            window = slice(first, first + WINDOW)
            true.append(100 * lead[window].sum() / run.steps["images"][window].sum())
            said.append(100 * np.nanmean(canaries[window]))
    if not said:
        return
    figure, axes = plt.subplots(figsize=(5, 4.5), layout="constrained")
    axes.scatter(said, true, s=10, alpha=0.6)
    ends = [min(*said, *true), max(*said, *true)]
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.axvline(0, color="grey", linewidth=0.5)
    axes.set(
        xlabel="canaries: points that adapting leads by",
        ylabel="labels: points that adapting leads by",
        title=f"{len(said)} windows of {WINDOW} batches, correlation {np.corrcoef(said, true)[0, 1]:.2f}",
    )
    figure.savefig(IMAGES / "guard-canaries.png", dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:])
