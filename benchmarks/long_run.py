"""The whole life of each contestant of the long run: a table, its data and a figure.

    tidefast sweep benchmarks/long.yaml --out runs/long --jobs 2
    python benchmarks/long_run.py runs/long

Writes benchmarks/results/long.csv (accuracy in each thousand batches) and docs/images/long-run.png.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from tidefast import bench
from tidefast.bench import metrics

ROOT = Path(__file__).parent.parent
BLOCK = 1000


def main(folder: str) -> None:
    """Print the table as Markdown, from the finished runs."""
    runs = [run for run in bench.find(folder) if run.complete]
    blocks = {run.experiment.label: _blocks(run) for run in runs}
    longest = max(map(len, blocks.values()))
    with (ROOT / "benchmarks" / "results" / "long.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["contestant", "batches", "accuracy", "resets", *(f"block {k + 1}" for k in range(longest))])
        for run in runs:
            row = [f"{value:.2f}" for value in (100 * run.accuracy, *blocks[run.experiment.label])]
            writer.writerow([run.experiment.label, run.batches, row[0], len(run.resets), *row[1:]])
    head = ("accuracy, %", "first tenth", "last tenth", "resets", "batches a reset", "ms, early", "ms, late")
    print(f"| contestant | {' | '.join(head)} |")
    print("| --- |" + " ---: |" * len(head))
    for run in runs:
        life = blocks[run.experiment.label][: longest // 10 * 10]
        gap = metrics.batches_per_reset(run.batches, len(run.resets))
        early, late = (1000 * np.median(run.seconds[part]) for part in (slice(500, 1500), slice(-1000, None)))
        print(
            f"| {run.experiment.label} | {100 * run.accuracy:.1f} | {np.mean(life[: longest // 10]):.1f} | "
            f"{np.mean(life[-(longest // 10) :]):.1f} | {len(run.resets)} | {'-' if np.isnan(gap) else f'{gap:.0f}'} | "
            f"{early:.1f} | {late:.1f} |"
        )
    _draw(blocks)


def _blocks(run: bench.Run) -> list[float]:
    whole = run.batches // BLOCK * BLOCK
    correct, images = (run.steps[name][:whole].reshape(-1, BLOCK).sum(1) for name in ("correct", "images"))
    return list(100 * correct / images)


def _draw(blocks: dict[str, list[float]]) -> None:
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    for name, values in blocks.items():
        smooth = np.convolve(values, np.ones(5) / 5, mode="valid")
        axes.plot(np.arange(len(smooth)) + 2, smooth, label=name, linewidth=1.2)
    axes.axhline(10, color="grey", linewidth=0.8, linestyle=":", label="chance")
    axes.set(xlabel="thousand batches", ylabel="accuracy, %, mean of 5,000 batches", ylim=(0, None))
    axes.legend(ncols=3, fontsize=8)
    figure.savefig(ROOT / "docs" / "images" / "long-run.png", dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:])
