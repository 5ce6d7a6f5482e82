"""The whole life of each contestant of a long run: a table, its data and a figure.

    tidefast sweep benchmarks/long.yaml --out runs/long --jobs 2
    python benchmarks/long_run.py runs/long

Writes benchmarks/results/long.csv (accuracy in each part of the life) and docs/images/long.png, named after the folder.
Contestants that are in that file and not among the finished runs stay: the runs take days, and may come one by one.
"""

from __future__ import annotations

import csv
import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from tidefast import bench
from tidefast.bench import metrics

ROOT = Path(__file__).parent.parent
PART = "part "
NEAR = 10.0
"""Points from batch statistics, on average, within which a contestant is drawn in the panel of differences."""


@dataclass(frozen=True)
class Life:
    """A contestant from the first batch to the last."""

    stream: str
    rate: str
    contestant: str
    batches: int
    resets: int
    early: float
    """Milliseconds of a step, the median of a thousand around the thousandth."""
    late: float
    """And of the last thousand."""
    accuracies: tuple[float, ...]
    """In percent, of each part of its life."""

    @property
    def identity(self) -> tuple[str, ...]:
        return self.stream, self.rate, self.contestant

    @property
    def place(self) -> str:
        return f"{self.stream}, rate {self.rate}" if self.rate else self.stream

    def mean(self, first: float = 0.0, last: float = 1.0) -> float:
        """Accuracy between two shares of its life."""
        count = len(self.accuracies)
        return float(np.mean(self.accuracies[round(first * count) : round(last * count)]))


def main(folder: str) -> None:
    """Print the table as Markdown, from the finished runs and those that were there before."""
    name = Path(folder).name
    file = ROOT / "benchmarks" / "results" / f"{name}.csv"
    lives = {life.identity: life for life in _read(file)}
    lives |= {life.identity: life for run in bench.find(folder) if run.complete for life in [_life(run)]}
    ordered = sorted(lives.values(), key=lambda life: (life.stream, life.rate, life.contestant))
    _write(file, ordered)
    head = ("accuracy, %", "first tenth", "last tenth", "resets", "batches a reset", "ms, early", "ms, late")
    print(f"| stream | contestant | {' | '.join(head)} |")
    print("| --- | --- |" + " ---: |" * len(head))
    for life in ordered:
        gap = metrics.batches_per_reset(life.batches, life.resets)
        print(
            f"| {life.place} | {life.contestant} | {life.mean():.1f} | {life.mean(last=0.1):.1f} | "
            f"{life.mean(first=0.9):.1f} | {life.resets:,} | {'-' if np.isnan(gap) else f'{gap:.0f}'} | "
            f"{life.early:.1f} | {life.late:.1f} |"
        )
    _draw(ordered, ROOT / "docs" / "images" / f"{name}.png")


def _life(run: bench.Run) -> Life:
    length = 10 ** int(np.log10(run.batches / 100))  # 1,000 batches of 117,188, 10 of 2,000
    whole = run.batches // length * length
    correct, images = (run.steps[name][:whole].reshape(-1, length).sum(1) for name in ("correct", "images"))
    around = slice(min(500, run.batches // 4), min(1500, run.batches // 2))
    early, late = (float(1000 * np.median(run.seconds[part])) for part in (around, slice(-1000, None)))
    optimizer = run.experiment.optimizer
    rate = "" if optimizer is None else f"{optimizer.options['lr']:g}"
    return Life(
        stream=run.experiment.stream.title or run.experiment.stream.spelled,
        rate="" if run.experiment.method.name in ("source", "batchnorm") else rate,
        contestant=run.experiment.label,
        batches=run.batches,
        resets=len(run.resets),
        early=early,
        late=late,
        accuracies=tuple(100 * correct / images),
    )


def _read(file: Path) -> list[Life]:
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    kinds = {field.name: field.type for field in dataclasses.fields(Life) if field.name != "accuracies"}
    read = {"str": str, "int": int, "float": float}
    return [
        Life(
            **{name: read[str(kind)](row[name]) for name, kind in kinds.items()},
            accuracies=tuple(float(value) for name, value in row.items() if name.startswith(PART)),
        )
        for row in rows
    ]


def _write(file: Path, lives: list[Life]) -> None:
    names = [field.name for field in dataclasses.fields(Life) if field.name != "accuracies"]
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow([*names, *(f"{PART}{number + 1}" for number in range(len(lives[0].accuracies)))])
        for life in lives:
            values = [getattr(life, name) for name in names]
            texts = [f"{value:.2f}" if isinstance(value, float) else value for value in values]
            writer.writerow([*texts, *(f"{value:.2f}" for value in life.accuracies)])


def _draw(lives: list[Life], file: Path) -> None:
    """Two panels for each stream and rate: accuracies, and below what those near it have over batch statistics."""
    places = [place for place in dict.fromkeys((life.stream, life.rate) for life in lives) if place[1]]
    figure, panels = plt.subplots(
        2, len(places), figsize=(max(9.0, 4.5 * len(places)), 7), layout="constrained", squeeze=False, sharey="row"
    )
    for (above, below), (stream, rate) in zip(panels.T, places, strict=True):
        shown = [life for life in lives if life.stream == stream and life.rate in ("", rate)]
        reference = next(_smooth(life) for life in shown if life.contestant == "BatchNorm")
        for number, life in enumerate(shown):
            smooth = _smooth(life)
            moments = np.linspace(0.025, 0.975, len(smooth)) * life.batches
            look = {"linewidth": 1.2, "linestyle": "-" if life.rate else "--", "color": f"C{number}"}
            above.plot(moments, smooth, label=life.contestant, **look)
            if abs(np.mean(smooth - reference)) < NEAR:
                below.plot(moments, smooth - reference, **look)
        above.set(ylabel="accuracy, %", ylim=(0, None), title=f"{stream}, rate {rate}")
        below.set(xlabel="batches", ylabel="points over batch statistics")
        above.legend(ncols=3, fontsize=7)
    figure.suptitle("Running means over 5 % of the life", fontsize=9)
    figure.savefig(file, dpi=130)


def _smooth(life: Life) -> np.ndarray:
    width = len(life.accuracies) // 20
    return np.convolve(life.accuracies, np.ones(width) / width, mode="valid")


if __name__ == "__main__":
    main(*sys.argv[1:])
