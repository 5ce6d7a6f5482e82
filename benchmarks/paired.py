"""The tables of docs/main-comparison.md, from a table of collect.py.

Accuracies by level, and what ASR changes on each base, stream by stream, with intervals; accuracies in the last quarter
or, of a table with one level, every stream by itself. The blocks of a stream are its tenths.

python benchmarks/paired.py benchmarks/results/main.csv
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from tidefast.bench.metrics import Floats, PairedDifference, StreamPair, batches_per_reset, collapsed, paired_difference

LEVELS = ("easy", "medium", "hard")
FIRST = ("43", "44")
"""The seeds that every contestant has on every level."""
OTHERS = ("", " + RDumb", " + RDumb (matched)", " + ASR (every 27, 80 %)")


Rows = dict[tuple[str, str, str], dict[str, str]]
"""By level, contestant and seed."""


def main(path: str) -> None:
    """Print the tables."""
    print("\n\n".join("\n".join(table) for table in tables(Path(path))))


def tables(path: Path) -> list[list[str]]:
    """The lines of each table: a line for each contestant, or for each base and level."""
    with path.open(encoding="utf-8") as lines:
        runs = {
            (row["stream"].rpartition("=")[2], row["contestant"], row["seed"]): row for row in csv.DictReader(lines)
        }
    levels = [level for level in LEVELS if any(place == level for place, _, _ in runs)]
    by_stream = [_streams(runs, levels[0])] if len(levels) == 1 else [_last_quarters(runs, levels)]
    return [_means(runs, levels), *by_stream, _differences(runs)]


def _differences(runs: Rows) -> list[str]:
    """What ASR changes on each base and level."""
    lines = [
        "| base, level | batches per reset | " + " | ".join(f"over {name[3:] or 'its base'}" for name in OTHERS) + " |",
        "| --- |" + " ---: |" * (1 + len(OTHERS)),
    ]
    for base in dict.fromkeys(name.removesuffix(" + ASR") for _, name, _ in runs if name.endswith(" + ASR")):
        for level in LEVELS:
            own = {seed: row for (place, name, seed), row in runs.items() if (place, name) == (level, f"{base} + ASR")}
            gaps = [batches_per_reset(int(row["batches"]), int(row["resets"])) for row in own.values()]
            found = [_over(own, {seed: runs.get((level, base + other, seed)) for seed in own}) for other in OTHERS]
            if own:
                lines.append(f"| {base}, {level} | {np.mean(gaps):.0f} | " + " | ".join(map(_text, found)) + " |")
    return lines


def _means(runs: Rows, levels: list[str]) -> list[str]:
    """Mean and standard deviation over streams; † where the mean is below the source's on the same streams."""
    lines = [_heading("contestant", *map(str.title, levels), "batches per reset")]
    for contestant in _contestants(runs):
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
        lines.append(f"| {contestant} | " + " | ".join(cells) + f" | {often} |")
    return lines


def _last_quarters(runs: Rows, levels: list[str]) -> list[str]:
    """Mean and each of the first streams; † where the mean is below the source's."""
    lines = [_heading("contestant", *map(str.title, levels))]
    for contestant in _contestants(runs):
        cells = []
        for level in levels:
            own, source = (
                [float(row["last quarter"]) for seed in FIRST if (row := runs.get((level, who, seed)))]
                for who in (contestant, "Source")
            )
            below = len(own) == len(source) and np.mean(own) < np.mean(source)
            each = ", ".join(f"{value:.1f}" for value in own)
            cells.append(f"{np.mean(own):.1f} ({each}){'†' if below else ''}" if own else "-")
        lines.append(f"| {contestant} | " + " | ".join(cells) + " |")
    return lines


def _streams(runs: Rows, level: str) -> list[str]:
    """Every stream of a level by itself."""
    seeds = sorted({seed for _, _, seed in runs})
    lines = [
        _heading("contestant", f"overall, seeds {' and '.join(seeds)}", "last quarter", "resets", "batches per reset")
    ]
    for contestant in _contestants(runs):
        own = [row for seed in seeds if (row := runs.get((level, contestant, seed)))]
        overall, quarter = (
            ", ".join(f"{float(row[name]):.1f}" for row in own) for name in ("accuracy", "last quarter")
        )
        gaps = [batches_per_reset(int(row["batches"]), int(row["resets"])) for row in own]
        often = "-" if np.isnan(gaps).all() else f"{np.nanmean(gaps):.0f}"
        resets = ", ".join(row["resets"] for row in own)
        lines.append(f"| {contestant} | {overall} | {quarter} | {resets} | {often} |")
    return lines


def _contestants(runs: Rows) -> list[str]:
    return sorted({name for _, name, _ in runs})


def _heading(*columns: str) -> str:
    return f"| {' | '.join(columns)} |\n| --- |{' ---: |' * (len(columns) - 1)}"


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
