"""How near the paths through a matrix come to their target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidefast.streams.matrix import Matrix


@dataclass(frozen=True)
class PathSummary:
    """Mean accuracies of the paths of all ordered pairs of some types, in percent."""

    target: float
    types: tuple[str, ...]
    means: dict[tuple[str, str], float]
    cells: dict[tuple[str, str], int]
    spread_within: float
    """Standard deviation of the accuracy along a path, on average over the paths."""

    @property
    def mean(self) -> float:
        """Of the accuracies of all cells, as a long stream meets them."""
        lengths = np.array([self.cells[pair] for pair in self.means])
        return float(np.average(list(self.means.values()), weights=lengths))

    @property
    def spread(self) -> float:
        """Standard deviation of the paths' means."""
        return float(np.std(list(self.means.values())))

    @property
    def length(self) -> float:
        """Cells of a path, on average."""
        return float(np.mean(list(self.cells.values())))

    def __str__(self) -> str:
        lowest, highest = min(self.means, key=self.means.__getitem__), max(self.means, key=self.means.__getitem__)
        return (
            f"target {self.target:g}: {len(self.means)} paths of {self.length:.1f} cells, mean {self.mean:.1f}, "
            f"spread of path means {self.spread:.1f} ({' to '.join(lowest)} {self.means[lowest]:.1f}, "
            f"{' to '.join(highest)} {self.means[highest]:.1f}), spread along a path {self.spread_within:.1f}"
        )


def summarize(matrix: Matrix, types: Sequence[str], target: float) -> PathSummary:
    """What accuracy a stream over these types has by its matrix, when it aims at `target`.

    >>> summary = summarize(Matrix.synthetic(), ("fog", "snow", "contrast"), 40)
    >>> len(summary.means), round(summary.mean, 2), summary.length
    (6, 39.91, 15.0)
    """
    means, cells, spreads = {}, {}, []
    for first, second in matrix.pairs(types):
        path = matrix.path(first, second, target)
        met = matrix.along(first, second, path)
        means[first, second], cells[first, second] = float(met.mean()), len(path)
        spreads.append(float(met.std()))
    return PathSummary(target, tuple(types), means, cells, float(np.mean(spreads)))
