"""The runs of a sweep in one small table, a row each, and their accuracy in tenths of the stream.

python benchmarks/collect.py runs/main > benchmarks/results/main.csv
"""

from __future__ import annotations

import csv
import sys

import numpy as np

from tidefast import bench
from tidefast.bench import metrics

PARTS = 10


def main(folder: str) -> None:
    """Print a line per finished run."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    tenths = [f"tenth {part + 1}" for part in range(PARTS)]
    writer.writerow(["model", "stream", "contestant", "seed", "batches", "accuracy", "last quarter", "resets", *tenths])
    for run in bench.find(folder):
        if not run.complete:
            continue
        correct, images = run.steps["correct"], run.steps["images"]
        last = metrics.last_quarter(run.batches)
        shares = [metrics.accuracy(correct[last], images[last])]
        parts = zip(np.array_split(correct, PARTS), np.array_split(images, PARTS), strict=True)
        shares += [metrics.accuracy(right, seen) for right, seen in parts]
        percent = [f"{100 * share:.2f}" for share in (run.accuracy, *shares)]
        one = run.experiment
        who = [one.model.spelled, one.stream.spelled, one.label, one.seed]
        writer.writerow([*who, run.batches, *percent[:2], len(run.resets), *percent[2:]])


if __name__ == "__main__":
    main(*sys.argv[1:])
