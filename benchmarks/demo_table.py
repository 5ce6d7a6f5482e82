"""The demonstration's table over several seeds.

for seed in 0 1 2; do tidefast demo --seed $seed; done
python benchmarks/demo_table.py runs/demo 0 1 2
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tidefast import demo, report


def main(folder: str, *seeds: str) -> None:
    """Print mean and standard deviation of accuracies, and each contestant's verdicts."""
    rows: dict[str, list[report.Standing]] = {}
    for seed in seeds:
        demonstration = demo.Demonstration(Path(folder), seed=int(seed))
        for standing in report.standings(demonstration.story(demo.lineup(demonstration.steps))):
            if standing.batches == standing.total:
                rows.setdefault(standing.label, []).append(standing)
    print("| contestant | overall, % | last quarter, % | resets | verdicts |\n| --- | --- | --- | --- | --- |")
    for label, standings in rows.items():
        cells = [
            f"{100 * np.mean(values):.1f}" + (f" ± {100 * np.std(values):.1f}" if len(values) > 1 else "")
            for values in ([s.overall for s in standings], [s.last_quarter for s in standings])
        ]
        resets = np.mean([standing.resets for standing in standings])
        print(f"| {label} | {' | '.join(cells)} | {resets:.0f} | {', '.join(s.verdict for s in standings)} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
