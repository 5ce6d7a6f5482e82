"""Accuracies by level, and what ASR changes on each base, stream by stream, with intervals; from a table of collect.py.

The blocks of a stream are its tenths.

python benchmarks/paired.py benchmarks/results/main.csv
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from tidefast.bench.metrics import Floats, PairedDifference, StreamPair, batches_per_reset, collapsed, paired_difference

LEVELS = ("easy", "medium", "hard")
OTHERS = ("", " + RDumb", " + RDumb (matched)", " + ASR (every 27, 80 %)")


def main(path: str) -> None:
    """Print a line for each contestant, then one for each base and level."""
    with Path(path).open(encoding="utf-8") as lines:
        runs = {
            (row["stream"].rpartition("=")[2], row["contestant"], row["seed"]): row for row in csv.DictReader(lines)
        }
    _print_means(runs)
    print(
        "| base, level | batches per reset | " + " | ".join(f"over {name[3:] or 'its base'}" for name in OTHERS) + " |"
    )
    print("| --- |" + " ---: |" * (1 + len(OTHERS)))
    for base in dict.fromkeys(name.removesuffix(" + ASR") for _, name, _ in runs if name.endswith(" + ASR")):
        for level in LEVELS:
            own = {seed: row for (place, name, seed), row in runs.items() if (place, name) == (level, f"{base} + ASR")}
            gaps = [batches_per_reset(int(row["batches"]), int(row["resets"])) for row in own.values()]
            found = [_over(own, {seed: runs.get((level, base + other, seed)) for seed in own}) for other in OTHERS]
            if own:
                print(f"| {base}, {level} | {np.mean(gaps):.0f} | " + " | ".join(map(_text, found)) + " |")


def _print_means(runs: dict[tuple[str, str, str], dict[str, str]]) -> None:
    """Mean and standard deviation over streams; † where the mean is below the source's on the same streams."""
    levels = [level for level in LEVELS if any(place == level for place, _, _ in runs)]
    print("| contestant | " + " | ".join(levels) + " | batches per reset |")
    print("| --- |" + " ---: |" * (len(levels) + 1))
    for contestant in dict.fromkeys(sorted(name for _, name, _ in runs)):
        cells, gaps = [], []
        for level in levels:
            own = {seed: row for (place, name, seed), row in runs.items() if (place, name) == (level, contestant)}
            values = [_accuracy(row) for row in own.values()]
            source = [_accuracy(runs[key]) for seed in own if (key := (level, "Source", seed)) in runs]
            if not own:
                cells.append("-")
                continue
            below = len(source) == len(values) and collapsed(np.mean(values), np.mean(source))
            gaps += [batches_per_reset(int(row["batches"]), int(row["resets"])) for row in own.values()]
            count = f" ({len(values)})" if len(values) != 2 else ""
            cells.append(f"{np.mean(values):.1f} ± {np.std(values):.1f}{'†' if below else ''}{count}")
        often = "-" if np.isnan(gaps).all() else f"{np.nanmean(gaps):.0f}"
        print(f"| {contestant} | " + " | ".join(cells) + f" | {often} |")
    print()


def _over(own: dict[str, dict[str, str]], other: dict[str, dict[str, str] | None]) -> PairedDifference:
    both = [(row, its) for seed, row in own.items() if (its := other[seed])]
    pairs = [StreamPair(_accuracy(row) - _accuracy(its), _tenths(row) - _tenths(its)) for row, its in both]
    return paired_difference([pairs])


def _accuracy(row: dict[str, str]) -> float:
    return float(row["accuracy"])


def _tenths(row: dict[str, str]) -> Floats:
    return np.array([float(value) for name, value in row.items() if name.startswith("tenth")])


def _text(found: PairedDifference) -> str:
    if not found.streams:
        return "-"
    sure = "" if found.verdict != "undecided" else "?"
    return f"{found.points:+.1f} [{found.low:+.1f}, {found.high:+.1f}]{sure} ({found.streams})"


if __name__ == "__main__":
    main(*sys.argv[1:])
