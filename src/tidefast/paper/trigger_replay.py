"""ASR's rule replayed on concentrations that are given: those of a run, of another run, or noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tidefast.bench.metrics import Counts, Floats
from tidefast.resets import ASR

Values = Sequence[float] | npt.NDArray[Any]
DRAWS = 20
"""Streams of noise, each as long as the run."""


def replay(concentration: Values, inconsistency: Values, policy: ASR, classes: int) -> Counts:
    """The batches after which the rule resets, counted from 0, given C_t and phi of each.

    >>> replay([-1.0] * 5 + [-0.5], [0.0] * 6, ASR(alpha0=0.5), 4).tolist()
    [5]
    """
    start = -math.log(policy.alpha0 * classes)
    threshold, steps, resets = start, 0, []
    for t, (value, phi) in enumerate(zip(concentration, inconsistency, strict=True)):
        steps += 1
        if policy.when.fires(value, threshold, steps):
            resets.append(t)
            threshold, steps = start, 0
        else:
            momentum = policy.momentum.of(phi, policy.mu0)
            threshold = momentum * threshold + (1.0 - momentum) * value
    return np.array(resets, np.int64)


def intervals(resets: Values) -> Floats:
    """Batches from the start of the stream to the first reset, and from each to the next.

    >>> intervals([9, 29, 59]).tolist()
    [10.0, 20.0, 30.0]
    """
    return np.diff(np.asarray(resets, float), prepend=-1.0)


def fluctuation(concentration: Values) -> float:
    """The standard deviation of C_t from batch to batch, without slow drift.

    >>> round(fluctuation([0.0, 1.0, 0.0, 1.0, 0.0]), 3)
    0.707
    """
    steps = np.diff(np.asarray(concentration, float))
    return float(np.sqrt(np.mean(steps**2) / 2))


def noise_intervals(concentration: Values, phi: float, policy: ASR, classes: int) -> Floats:
    """The intervals of the rule on white noise about a constant, as large as the fluctuation of C_t, phi held."""
    values, rng = np.asarray(concentration, float), np.random.default_rng(0)
    streams = rng.normal(values.mean(), fluctuation(values), (DRAWS, len(values)))
    held = np.full(len(values), phi)
    return np.concatenate([intervals(replay(stream, held, policy, classes)) for stream in streams])


def change_before(gain: Values, window: int) -> Floats:
    """At each batch the mean of the last `window` values, itself included, minus that of the `window` before.

    nan where there are not so many.

    >>> change_before([0.0, 0.0, 1.0, 3.0], 2).tolist()
    [nan, nan, nan, 2.0]
    """
    values = np.asarray(gain, float)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    change = np.full(len(values), np.nan)
    if len(values) >= 2 * window:
        recent = sums[2 * window :] - sums[window:-window]
        change[2 * window - 1 :] = (recent - (sums[window:-window] - sums[: -2 * window])) / window
    return change


def correlation_before(resets: Values, gain: Values, window: int) -> tuple[float, float, float]:
    """Pearson's r of "is reset after this batch" with `change_before`, and the range of 95 % that chance gives it.

    Chance: the same resets, all shifted by one number of batches, around the end of the stream. nan without resets.
    """
    change = change_before(gain, window)
    known = np.isfinite(change)
    fired = np.zeros(len(change))
    fired[np.asarray(resets, np.int64)] = 1.0
    shifts = range(window, len(change) - window)
    if not fired[known].any() or fired[known].all() or not len(shifts) or not np.ptp(change[known]):
        return math.nan, math.nan, math.nan

    def r(indicator: Floats) -> float:
        return float(np.corrcoef(indicator[known], change[known])[0, 1]) if np.ptp(indicator[known]) else 0.0

    low, high = np.quantile([r(np.roll(fired, shift)) for shift in shifts], (0.025, 0.975)).tolist()
    return r(fired), low, high
