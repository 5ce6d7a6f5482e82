"""Where a stream passes from one domain to the next, and what the concentration of predictions does there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.results import Run, dominant_domains
from tidefast.paper import timeline

NEAR = 5
"""Batches before and after a boundary that are compared, and within which a reset follows it."""
ABRUPT = 2.0
"""Standard deviations of changes elsewhere beyond which a change is abrupt."""


@dataclass(frozen=True)
class Boundary:
    """The first batch of a domain."""

    batch: int
    before: str
    after: str
    change: float
    """Of the mean concentration, NEAR batches from it on against NEAR before."""
    kind: str
    """`rise` or `decline` when the change is abrupt, else nothing."""
    reset: bool
    """Whether a reset came after one of its first NEAR batches."""


@dataclass(frozen=True, eq=False)
class Dynamics:
    """The boundaries of a run."""

    boundaries: tuple[Boundary, ...]
    usual: float
    """Standard deviation of the changes elsewhere."""
    near_rate: float
    """Resets per batch, of the first NEAR batches of domains."""
    far_rate: float
    """Resets per batch, of all others."""

    def of(self, kind: str) -> list[Boundary]:
        """The boundaries with a rise, or a decline."""
        return [one for one in self.boundaries if one.kind == kind]


def starts(domains: list[str]) -> metrics.Counts:
    """The batches at which a new domain begins, but for the first.

    >>> starts(["fog", "fog", "snow", "fog"]).tolist()
    [2, 3]
    """
    return np.array([at for at in range(1, len(domains)) if domains[at] != domains[at - 1]], np.int64)


def changes(values: metrics.Floats) -> metrics.Floats:
    """For each batch the mean of NEAR values from it on minus that of NEAR before; nan where there are not as many.

    >>> changes(np.array([0.0] * 5 + [1.0] * 5))[4:7].tolist()
    [nan, 1.0, nan]
    """
    means = np.full(len(values) + 1, np.nan)
    if len(values) >= NEAR:
        means[: len(values) - NEAR + 1] = np.lib.stride_tricks.sliding_window_view(values, NEAR).mean(axis=1)
    found = np.full(len(values), np.nan)
    found[NEAR:] = means[NEAR:-1] - means[: -NEAR - 1]
    return found


def dynamics(run: Run) -> Dynamics:
    """The boundaries of a run, with what concentration and resets do there."""
    domains = dominant_domains(run)
    return dynamics_of(domains, run.steps["concentration"], timeline.resets(run))


def dynamics_of(domains: list[str], concentration: metrics.Floats, resets: metrics.Counts) -> Dynamics:
    """From the domain and the concentration of each batch, and the batches after which it was reset."""
    at = starts(domains)
    change = changes(concentration)
    batches = np.arange(len(domains))
    last = at[np.searchsorted(at, batches, side="right") - 1] if len(at) else batches
    since = np.where(batches >= last, batches - last, len(domains))  # the first domain has no boundary before it
    until = np.concatenate([at, [len(domains)]])[np.searchsorted(at, batches)] - batches
    elsewhere = change[(since >= NEAR) & (until >= NEAR) & np.isfinite(change)]
    usual = float(elsewhere.std()) if len(elsewhere) > 1 else math.nan
    near, followed = since < NEAR, np.isin(batches, resets)
    found = tuple(
        Boundary(
            int(t),
            domains[t - 1],
            domains[t],
            float(change[t]),
            "" if not abs(change[t]) > ABRUPT * usual else "rise" if change[t] > 0 else "decline",
            bool(followed[t : min(t + NEAR, end)].any()),
        )
        for t, end in zip(at, [*at[1:], len(domains)], strict=True)
    )
    return Dynamics(found, usual, _share(followed[near]), _share(followed[~near]))


def _share(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    return float(flags.mean()) if len(flags) else math.nan
