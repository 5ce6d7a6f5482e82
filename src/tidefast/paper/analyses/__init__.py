"""One file per analysis; importing this registers them all."""

from tidefast.paper.analyses import (  # noqa: F401 - each registers itself
    batch_size,
    calibration,
    collapse,
    concentration,
    cost,
    dynamics,
    false_positives,
    groups,
    imbalance,
    measures,
    proximity,
    recovery,
    resets,
    schedules,
    sensitivity,
    stability,
    timer,
    variance,
)
from tidefast.paper.analysis import registry

__all__ = ["registry"]
