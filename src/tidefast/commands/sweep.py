"""`tidefast sweep`."""

from __future__ import annotations

import argparse
import sys

from tidefast.commands.given import given

PURPOSE = "a grid of experiments on local processes or a Ray cluster; finished runs are not run again"
EXAMPLE = "tidefast sweep grid.yaml --out runs/grid --jobs 2"
EXTRA = "bench"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("file", help="grid in YAML: an experiment in which a field that is a list is an axis")
    parser.add_argument("--out", required=True, help="folder of the runs")
    parser.add_argument("--jobs", type=int, help="runs at a time (default: one per core)")
    parser.add_argument("--threads", type=int, help="torch threads of each run (default: its share of the cores)")
    parser.add_argument("--backend", choices=("local", "ray"), help="where (default: local)")
    parser.add_argument("--address", help="of a Ray cluster (default: Ray on this machine)")
    parser.add_argument("--snapshot-every", type=int, help="batches a kill may cost (default: 100)")
    parser.add_argument("--retries", type=int, help="times a lost run is taken up again (default: 3)")
    parser.add_argument("--fresh", action="store_true", help="delete the earlier runs of these experiments first")
    parser.add_argument("--list", action="store_true", help="only print the experiments, and which are finished")


def run(options: argparse.Namespace) -> int:
    """Run the grid; 1 when an experiment failed."""
    from pathlib import Path

    from tidefast import bench
    from tidefast.bench import interruption
    from tidefast.bench.results import RESULT
    from tidefast.commands.bar import of_runs

    experiments = bench.experiments(options.file)
    if options.list:
        for experiment in experiments:
            done = (Path(options.out) / experiment.key / RESULT).is_file()
            print(f"{'finished' if done else 'to do':8}  {experiment.key}")
        return 0
    try:
        with of_runs() as show:
            outcomes = bench.sweep(
                experiments,
                options.out,
                fresh=options.fresh,
                watch=show,
                **given(options, "jobs", "threads", "backend", "address", "snapshot_every", "retries"),
            )
    except interruption.Termination as termination:
        print("tidefast: terminated; the same command goes on from the last snapshots", file=sys.stderr)
        return int(termination.code or 1)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        print(f"failed: {outcome.experiment.key}: {' '.join((outcome.error or '').split())}")
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} runs are finished; tidefast report {options.out}")
    return 1 if failed else 0
