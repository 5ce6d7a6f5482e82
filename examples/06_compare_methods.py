"""Compare methods: a grid of experiments on disk, and the tables and the page made from it.

Every run can be interrupted and goes on where it was; a second start of this script finds all of them finished.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tidefast import bench
from tidefast.report.arrangement import Arrangement, read
from tidefast.report.comparison import Comparison
from tidefast.report.formats import render

GRID = {
    "stream": {"name": "recurring", "images": 160},
    "method": ["source", "batchnorm", {"name": "eta", "similarity_margin": 0.4, "title": "ETA"}],
    "optimizer": "adam:lr=1e-3",
    "steps": 20,
    "batch": 32,
    "seed": [0],
}


def main(folder: str) -> None:
    """Run what is missing, then print the table of accuracies."""
    for outcome in bench.sweep(GRID, folder, jobs=1, threads=1):
        print(f"{outcome.experiment.label}: {outcome.error or 'done'}")
    comparison = Comparison(Arrangement(read([folder])))
    print(render([comparison.accuracy()], "markdown"))
    found = {run.experiment.label: run.accuracy for run in bench.find(folder)}
    print(f"of all images, ETA gets {found['ETA']:.1%} right, the source model {found['Source']:.1%}")


if __name__ == "__main__":  # the runs are processes of their own
    if len(sys.argv) > 1:
        main(sys.argv[1])  # kept: `tidefast report FOLDER` makes all tables and a page
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(str(Path(temporary) / "runs"))
