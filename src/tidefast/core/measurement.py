"""What a measurement is: a number that a reset policy reports after a step, declared once by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NAME = re.compile(r"[a-z][a-z0-9_]*")

_OF_RECORDS = ("step", "loss", "selected", "reset_fraction", "seconds", "nonfinite", "skipped", "measurements")
_OF_RUNS = ("images", "correct", "accuracy", "predicted", "labels", "spans")
_OF_CALIBRATION = ("likelihood_loss", "brier_score", "bin_images", "bin_correct", "bin_confidence")
_OF_PREDICTIONS = ("concentration_mean_of_softmax", "concentration_without_1", "concentration_without_10_percent")
_OF_METRICS = ("steps", "answers", "resets", "depth", "latency_seconds")
RESERVED = frozenset((*_OF_RECORDS, *_OF_RUNS, *_OF_CALIBRATION, *_OF_PREDICTIONS, *_OF_METRICS))
"""Names that mean something else where measurements are written down."""


@dataclass(frozen=True)
class Measurement:
    """What a measured number is; lists, columns, metrics and charts are made from it."""

    description: str
    """A sentence."""
    unit: str = ""
    """"share" for a number from 0 to 1, which people read in per cent; "" for a number without a unit."""
    beside: str | None = None
    """Another measurement that it is to be compared with, in one chart."""


STANDARD: Mapping[str, Measurement] = {
    "concentration": Measurement("Concentration C_t of the predictions: the negative entropy of their mean.", "nats"),
    "threshold": Measurement("Threshold that the concentration is compared with.", "nats", beside="concentration"),
    "inconsistency": Measurement("Share of the images on which source and adapted model disagree.", "share"),
    "momentum": Measurement("Momentum mu_C with which the threshold follows the concentration."),
    "penalty": Measurement("Weight lambda_F of the recovery term."),
}
"""Those that are fields of every record."""


def check(owner: str, declared: Mapping[str, Measurement]) -> None:
    """Refuse a declaration that could not be written down, with the reason.

    >>> check("Mine", {"surprise": Measurement("Mean surprise of a batch.", "nats")})
    >>> check("Mine", {"loss": Measurement("Another loss.")})
    Traceback (most recent call last):
    ...
    ValueError: Mine cannot measure 'loss': records, runs or metrics have something else of that name; choose another
    """
    for name, measurement in declared.items():
        if not isinstance(measurement, Measurement):
            raise TypeError(
                f"{owner} declares {name!r} as {measurement!r}: expected a Measurement, such as "
                f'{{"{name}": Measurement("What it is.")}}'
            )
        if not _NAME.fullmatch(name):
            raise ValueError(f"{owner} cannot measure {name!r}: a name has small letters, digits and underscores")
        if name in RESERVED:
            raise ValueError(
                f"{owner} cannot measure {name!r}: records, runs or metrics have something else of that name; "
                "choose another"
            )
        if measurement.beside is not None and measurement.beside not in declared:
            raise ValueError(
                f"{owner} puts {name!r} beside {measurement.beside!r}, which it does not measure; "
                f"it measures {', '.join(declared)}"
            )
