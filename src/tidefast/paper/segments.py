"""The order in which domains came: stretches of batches in one domain, as numbers and as a strip of colour."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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


def lengths(found: Sequence[Segment]) -> tuple[float, float, float]:
    """Segments in a visit, batches of its longest and of its shortest; means over visits.

    >>> lengths([Segment("fog", 0, 3), Segment("snow", 0, 1), Segment("fog", 1, 4)])
    (1.5, 3.5, 2.5)
    """
    by_visit = [[one.batches for one in group] for _, group in itertools.groupby(found, key=lambda one: one.visit)]
    count, longest, shortest = (np.mean([of(batches) for batches in by_visit]) for of in (len, max, min))
    return float(count), float(longest), float(shortest)


def strip(axes: Axes, found: Sequence[Segment], names: Sequence[str]) -> None:
    """Draw the segments as a strip, visit v from v - 1/2 to v + 1/2; `names`: all domains of the figure."""
    edges = _edges(found)
    for domain in names:
        spans = [
            (left, right - left)
            for left, right, one in zip(edges, edges[1:], found, strict=False)
            if one.domain == domain
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


def _edges(found: Sequence[Segment]) -> Floats:
    """Where segments begin and end, counted in visits."""
    totals: dict[int, int] = {}
    for one in found:
        totals[one.visit] = totals.get(one.visit, 0) + one.batches
    shares = np.array([one.batches / totals[one.visit] for one in found])
    edges: Floats = np.concatenate([[0.5], 0.5 + np.cumsum(shares)])
    return edges


def _words(domain: str) -> str:
    return domain.replace("_", " ")
