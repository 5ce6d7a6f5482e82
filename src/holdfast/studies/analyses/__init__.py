"""One file per analysis."""

from holdfast.studies.analyses import (
    batch_size,
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
    variance,
)

__all__ = [
    "batch_size",
    "collapse",
    "concentration",
    "cost",
    "dynamics",
    "false_positives",
    "groups",
    "imbalance",
    "measures",
    "proximity",
    "recovery",
    "resets",
    "schedules",
    "sensitivity",
    "stability",
    "variance",
]
