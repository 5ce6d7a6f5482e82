"""The demonstration's table over several seeds.

for seed in 0 1 2; do tidefast demo --seed $seed; done
python benchmarks/demo_table.py runs/demo 0 1 2
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np

from tidefast import demo, report
from tidefast.bench import metrics


def main(folder: str, *seeds: str) -> None:
    """Print mean and standard deviation of accuracies, and each contestant's verdicts."""
    rows: dict[str, list[report.HeadlineRow]] = {}
    for seed in seeds:
        demonstration = demo.Demonstration(Path(folder), seed=int(seed))
        for standing in report.headline_rows(
            demonstration.content(demo.pick_contestants(demonstration.steps, full=True))
        ):
            if standing.batches == standing.total:
                rows.setdefault(standing.label, []).append(standing)
    print("| contestant | overall, % | last quarter, % | resets | verdicts |\n| --- | --- | --- | --- | --- |")
    for label, headline_rows in rows.items():
        cells = [
            f"{100 * np.mean(values):.1f}" + (f" ± {100 * np.std(values):.1f}" if len(values) > 1 else "")
            for values in ([s.overall for s in headline_rows], [s.last_quarter for s in headline_rows])
        ]
        resets = np.mean([standing.resets for standing in headline_rows])
        gap = metrics.batches_per_reset(headline_rows[0].batches, round(resets))
        every = f"{resets:.0f}" if math.isnan(gap) else f"{resets:.0f} (every {gap:.0f})"
        print(f"| {label} | {' | '.join(cells)} | {every} | {', '.join(s.verdict for s in headline_rows)} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
