"""One number of the guard changed in all cells of its grid but those of bundled-lite0: how far the mean moves.

    python benchmarks/guard_setting.py limit 2 runs/guard-limit-2

Runs of benchmarks/guard.yaml, resumable like any sweep, against the rows of benchmarks/results/guard.csv.
"""

from __future__ import annotations

import dataclasses
import sys

import guard
import numpy as np

from tidefast import bench


def main(name: str, value: str, folder: str) -> None:
    """Print how the cells with that setting compare with those without."""
    number = float(value)
    changed = [
        dataclasses.replace(one, reset=dataclasses.replace(one.reset, options={name: number}))
        for one in bench.experiments(str(guard.ROOT / "benchmarks" / "guard.yaml"))
        if one.reset.name == "guard" and one.model.name != "bundled-lite0"
    ]
    failed = [outcome for outcome in bench.sweep(changed, folder, jobs=2, threads=1) if outcome.error]
    assert not failed, failed[0].error
    usual = {trial.identity: trial.accuracy for trial in guard.read_trials(guard.RESULTS)}
    trials = [guard.trial_of(run) for run in bench.find(folder)]
    moves = [trial.accuracy - usual[trial.identity] for trial in trials]
    low, high = min(moves), max(moves)
    print(f"{name} {number:g}: {np.mean(moves):+.2f} points over {len(moves)} cells, {low:+.1f} to {high:+.1f} in one")


if __name__ == "__main__":
    main(*sys.argv[1:])
