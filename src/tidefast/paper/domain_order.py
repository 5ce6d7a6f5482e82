"""The order in which domains came: stretches of batches in one domain, and what happens between two."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.metrics import Floats
from tidefast.bench.results import Run, dominant_domains

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Pale fills after Paul Tol, safe under colour blindness, and none of them the colour of a line; then darker ones.
FILLS = (
    *("#335577", "#EEDD88", "#EE8866", "#77AADD", "#DDDDDD", "#44BB99", "#FFAABB", "#AAAA00"),
    *("#99DDFF", "#887722", "#883322", "#777777", "#116644", "#995566", "#336688", "#555500"),
)
NEAR = 5
"""Batches before and after a boundary that are compared, and within which a reset follows it."""
ABRUPT = 2.0
"""Standard deviations of changes elsewhere beyond which a change is abrupt."""


@dataclass(frozen=True)
class Segment:
    """Batches in a row of one domain at one visit."""

    domain: str
    visit: int
    batches: int


def segments(run: Run) -> list[Segment]:
    """The stream of a run, in order; a batch of several domains counts as that of most of its images."""
    visit = dict(zip(run.spans["step"].tolist(), run.spans["visit"].tolist(), strict=True))
    pairs = zip(dominant_domains(run), (visit[step] for step in run.steps["step"].tolist()), strict=True)
    return [Segment(domain, at, len(list(group))) for (domain, at), group in itertools.groupby(pairs)]


def lengths(segments: Sequence[Segment]) -> tuple[float, float, float]:
    """Segments in a visit, batches of its longest and of its shortest; means over visits.

    >>> lengths([Segment("fog", 0, 3), Segment("snow", 0, 1), Segment("fog", 1, 4)])
    (1.5, 3.5, 2.5)
    """
    by_visit = [
        [segment.batches for segment in group]
        for _, group in itertools.groupby(segments, key=lambda segment: segment.visit)
    ]
    count, longest, shortest = (np.mean([of(batches) for batches in by_visit]) for of in (len, max, min))
    return float(count), float(longest), float(shortest)


def strip(axes: Axes, segments: Sequence[Segment], names: Sequence[str]) -> None:
    """Draw the segments as a strip, visit v from v - 1/2 to v + 1/2; `names`: all domains of the figure."""
    edges = _edges(segments)
    for domain in names:
        spans = [
            (left, right - left)
            for left, right, segment in zip(edges, edges[1:], segments, strict=False)
            if segment.domain == domain
        ]
        fill = FILLS[names.index(domain) % len(FILLS)]
        axes.broken_barh(spans, (0, 1), facecolors=fill, edgecolors="none", linewidth=0, antialiased=False)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.grid(False)
    for side in axes.spines.values():
        side.set_visible(False)


def legend(drawn: Figure, names: Sequence[str]) -> None:
    """The key of the strips, above everything."""
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=FILLS[at % len(FILLS)], label=_words(name)) for at, name in enumerate(names)]
    drawn.legend(
        handles=patches, loc="outside upper center", ncols=min(6, len(names)), title="domains", title_fontsize=7
    )


def _edges(segments: Sequence[Segment]) -> Floats:
    """Where segments begin and end, counted in visits."""
    totals: dict[int, int] = {}
    for segment in segments:
        totals[segment.visit] = totals.get(segment.visit, 0) + segment.batches
    shares = np.array([segment.batches / totals[segment.visit] for segment in segments])
    edges: Floats = np.concatenate([[0.5], 0.5 + np.cumsum(shares)])
    return edges


def _words(domain: str) -> str:
    return domain.replace("_", " ")


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
        return [boundary for boundary in self.boundaries if boundary.kind == kind]


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
    differences = np.full(len(values), np.nan)
    differences[NEAR:] = means[NEAR:-1] - means[: -NEAR - 1]
    return differences


def dynamics(run: Run) -> Dynamics:
    """The boundaries of a run, with what concentration and resets do there."""
    domains = dominant_domains(run)
    return dynamics_of(domains, run.steps["concentration"], run.resets)


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
    boundaries = tuple(
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
    return Dynamics(boundaries, usual, _share(followed[near]), _share(followed[~near]))


def _share(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    return float(flags.mean()) if len(flags) else math.nan
