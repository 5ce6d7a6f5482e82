"""From a run on disk to a track of a story."""

from __future__ import annotations

import numpy as np

from tidefast import bench
from tidefast.report.story import Track


def track_of(run: bench.Run, key: str, label: str, details: bool = True) -> Track:
    """What a run holds so far; without `details` only what its accuracy over time needs."""
    steps = run.steps
    batches = run.batches
    nothing, unknown = np.zeros((batches, 0), np.int64), np.full(batches, np.nan)
    # Every run has the concentration; it is shown beside a threshold only.
    concentrated = details and bool(np.isfinite(steps["threshold"]).any())
    return Track(
        key=key,
        label=label,
        total=max(run.total, batches),
        correct=steps["correct"].astype(np.float64),
        count=steps["images"].astype(np.float64),
        predicted=steps["predicted"].astype(np.int64) if details else nothing,
        labels=steps["labels"].astype(np.int64) if details else nothing,
        domains=bench.dominant_domains(run),
        reset_fraction=np.nan_to_num(steps["reset_fraction"]),
        concentration=steps["concentration"] if concentrated else unknown,
        threshold=steps["threshold"] if concentrated else unknown,
        seconds=run.seconds if details else unknown,
    )
