"""Building blocks of CCC (continually changing corruptions): the chain of noises, the path through two severities."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidefast.core.validation import require_count
from tidefast.corruptions import CCC
from tidefast.errors import UnknownNameError
from tidefast.streams.domain import Domain
from tidefast.streams.schedule import Schedule, Stretch

PathCell: TypeAlias = tuple[int, int]

# The generator's sets. Types are drawn by index, so the order matters.
LEVELS: dict[str, tuple[str, ...]] = {
    "easy": CCC,
    "medium": tuple(name for name in CCC if name != "jpeg"),
    "hard": ("gaussian_noise", "shot_noise", "impulse_noise", "contrast"),
}
CELLS_PER_SEVERITY = 4
GRID = 21  # severities 0, 0.25, ..., 5


def noise_types(level: str | float | Sequence[str]) -> tuple[str, ...]:
    """The types of a level: its name, its target accuracy in percent (as CCC's folders name it), or a list of types.

    >>> noise_types("hard") == noise_types(0) == ("gaussian_noise", "shot_noise", "impulse_noise", "contrast")
    True
    """
    if isinstance(level, str):
        if level.lower() not in LEVELS:
            raise UnknownNameError(f"unknown level {level!r}; known: {', '.join(LEVELS)}, or a list of corruptions")
        return LEVELS[level.lower()]
    if isinstance(level, (int, float)):
        return LEVELS["easy" if level >= 40 else "medium" if level >= 20 else "hard"]
    types = tuple(level)
    if len(set(types)) < 2:
        raise ValueError(f"a chain needs at least two different corruptions, got {list(types)}")
    Domain(*((name, 1.0) for name in dict.fromkeys(types)))  # are these corruptions?
    return types


def noise_chain(level: str | float | Sequence[str], seed: int, length: int) -> list[str]:
    """The first `length` noises of a CCC stream, drawn as its generator does; neighbours differ.

    The chain depends on the level and the seed alone (the published streams have 43, 44 and 45), not on the speed.

    >>> noise_chain("hard", 43, 4)
    ['gaussian_noise', 'impulse_noise', 'shot_noise', 'contrast']
    """
    require_count("length", length)
    return list(itertools.islice(endless_chain(level, seed), length))


def endless_chain(level: str | float | Sequence[str], seed: int) -> Iterator[str]:
    """The noises of `noise_chain`, without end.

    >>> list(itertools.islice(endless_chain("hard", 43), 4)) == noise_chain("hard", 43, 4)
    True
    """
    types = noise_types(level)
    draws = random.Random(seed)
    current = draws.choice(types)
    while True:
        yield current
        following = draws.choice(types)
        while following == current:
            following = draws.choice(types)
        current = following


def find_path(matrix: npt.ArrayLike, target: float) -> list[PathCell]:
    """CCC's path from noise 1 alone (i, 0) to noise 2 alone (0, j), with a mean accuracy near the target.

    `matrix[i, j]` is the accuracy in percent under noise 1 at severity i/4, then noise 2 at severity j/4. Each move
    lowers i or raises j by one. A greedy recursion on running means, as published, and not the global optimum.

    >>> path = find_path(synthetic_matrix(), target=40)
    >>> path[0], path[-1], len(path)
    ((7, 0), (0, 7), 15)
    """
    accuracy = _accuracies(matrix)
    if not math.isfinite(target):
        raise ValueError(f"target must be an accuracy in percent, got {target!r}")
    rows, columns = len(accuracy), len(accuracy[0])
    # Sum and length of the path from each cell of the row above the one at hand.
    above = [(accuracy[0][j], 1) for j in range(columns)]
    goes_up: list[list[bool]] = [[]]
    best_start, best_distance = 0, math.inf
    for i in range(1, rows):
        right = (math.inf, 1)  # there is no column beyond the last
        row: list[tuple[float, int]] = [right] * columns
        ups = [True] * columns
        for j in reversed(range(columns)):
            if_up = (above[j][0] + accuracy[i][j], above[j][1] + 1)
            if_right = (right[0] + accuracy[i][j], right[1] + 1)
            ups[j] = abs(if_up[0] / if_up[1] - target) < abs(if_right[0] / if_right[1] - target)
            row[j] = right = if_up if ups[j] else if_right
        distance = abs(row[0][0] / row[0][1] - target)
        if distance < best_distance:
            best_start, best_distance = i, distance
        above = row
        goes_up.append(ups)
    i, j = best_start, 0
    path = [(i, j)]
    while i > 0:
        i, j = (i - 1, j) if goes_up[i][j] else (i, j + 1)
        path.append((i, j))
    return path


def _accuracies(matrix: npt.ArrayLike) -> list[list[float]]:
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] < 2 or array.shape[1] < 1:
        raise ValueError(
            f"matrix must be [{GRID}, {GRID}] accuracies in percent (rows: severity of noise 1), "
            f"got shape {list(array.shape)}"
        )
    if not np.isfinite(array).all():
        raise ValueError(f"matrix must be finite, got {int((~np.isfinite(array)).sum())} cells that are not")
    return [[float(value) for value in row] for row in array]


def synthetic_matrix(clean: float = 76.0, first: float = 2.2, second: float = 1.6) -> npt.NDArray[np.float64]:
    """Accuracies [21, 21] that fall exponentially in both severities: a stand-in where nothing was measured.

    A path through it is not calibrated: the accuracy of a real model along it is whatever it is.

    >>> synthetic_matrix().shape, float(synthetic_matrix()[0, 0])
    ((21, 21), 76.0)
    """
    steps = np.arange(GRID) / (GRID - 1)
    matrix: npt.NDArray[np.float64] = clean * np.exp(-first * steps[:, None] - second * steps[None, :])
    return matrix


def walk(first: str, second: str, path: Iterable[PathCell], images_per_cell: int | Iterable[int]) -> Schedule:
    """One noise fades into another along a path of cells (i, j): severities i/4 and j/4, so many images each.

    `images_per_cell` is one number for all, or one for each cell.

    >>> [str(s.domain) for s in walk("fog", "snow", [(1, 0), (1, 1), (0, 1)], images_per_cell=100).stretches]
    ['fog 0.25', 'fog 0.25 + snow 0.25', 'snow 0.25']
    """
    images = itertools.repeat(images_per_cell) if isinstance(images_per_cell, int) else images_per_cell
    return Schedule(
        tuple(
            Stretch(Domain((first, i / CELLS_PER_SEVERITY), (second, j / CELLS_PER_SEVERITY)), count)
            for (i, j), count in zip(path, images, strict=False)
        )
    )


def chained_walks(
    noises: Sequence[str], path: Callable[[str, str], Iterable[PathCell]], images_per_cell: int
) -> Iterable[Schedule]:
    """The walks from each noise of a chain to the next, one at a time; `path(first, second)` gives the cells.

    >>> corner = [(1, 0), (1, 1), (0, 1)]
    >>> [schedule.images for schedule in chained_walks(["fog", "snow", "frost"], lambda *pair: corner, 10)]
    [30, 30]
    """
    for first, second in itertools.pairwise(noises):
        yield walk(first, second, path(first, second), images_per_cell)
