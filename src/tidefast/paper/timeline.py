"""Runs along their stream: blocks, curves and resets."""

from __future__ import annotations

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.results import Run
from tidefast.report.data import track_of


def block_length(batches: int) -> int:
    """Batches of a block: 1000 as in the paper where a stream has twenty such, else a twentieth of it.

    >>> block_length(117_188), block_length(1000), block_length(7)
    (1000, 50, 1)
    """
    return metrics.BLOCK if batches >= 20 * metrics.BLOCK else max(1, batches // 20)


def batch_accuracy(run: Run) -> metrics.Floats:
    """The accuracy of each batch."""
    return metrics.batch_accuracy(run.steps["correct"], run.steps["images"])


def smooth_accuracy(run: Run, window: int) -> metrics.Floats:
    """At each batch, the accuracy over the `window` batches around it; fewer at the ends."""
    return track_of(run, "", "", details=False).smooth_accuracy(window)


def depths(run: Run) -> metrics.Floats:
    """For each batch the share of layers that were reset after it."""
    shares: metrics.Floats = np.nan_to_num(run.steps["reset_fraction"])
    return shares


def resets(run: Run) -> metrics.Counts:
    """The batches after which it was reset, counted from 0."""
    return np.flatnonzero(depths(run) > 0)
