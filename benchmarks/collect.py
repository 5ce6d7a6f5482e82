"""The runs of a sweep in one small table, a row each, and their accuracy in tenths of the stream.

python benchmarks/collect.py runs/main > benchmarks/results/main.csv
python benchmarks/collect.py runs/more --into benchmarks/results/main.csv  # rows that are there are replaced
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tidefast import bench
from tidefast.bench import metrics
from tidefast.core.files import write_atomically

PARTS = 10
WHO = ("model", "stream", "contestant", "seed", "batches")
"""What tells a row from others."""
COLUMNS = (*WHO, "accuracy", "last quarter", "resets", *(f"tenth {part + 1}" for part in range(PARTS)))


def main(folder: str, into: str | None = None) -> None:
    """Print a line per finished run, or put them into a table that there is."""
    rows = list(_rows(folder))
    if into is None:
        sys.stdout.write(_table(rows))
    else:
        with Path(into).open(encoding="utf-8", newline="") as lines:
            there = list(csv.DictReader(lines))
        write_atomically(Path(into), _table(merged(there, rows)).encode())


def merged(there: list[dict[str, str]], rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows of a table, with new ones in their places and behind the others of their stream."""
    kept = {_who(row): row for row in (*there, *rows)}
    streams = list(dict.fromkeys((row["model"], row["stream"]) for row in kept.values()))
    return sorted(kept.values(), key=lambda row: streams.index((row["model"], row["stream"])))


def _rows(folder: str) -> Iterator[dict[str, str]]:
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
        who = [one.model.spelled, one.stream.spelled, one.label, str(one.seed), str(run.batches)]
        yield dict(zip(COLUMNS, [*who, *percent[:2], str(len(run.resets)), *percent[2:]], strict=True))


def _who(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in WHO)


def _table(rows: list[dict[str, str]]) -> str:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--into", metavar="FILE")
    options = parser.parse_args()
    main(options.folder, options.into)
