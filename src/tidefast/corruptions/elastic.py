"""Elastic transform: a random affine map, then a smooth random displacement of every pixel."""

from __future__ import annotations

import numpy as np

from tidefast.corruptions.compiled import compiled
from tidefast.corruptions.gaussian import smooth_reflected
from tidefast.corruptions.images import Bytes, Double, Single, truncate
from tidefast.corruptions.severity import SeverityConstants


def elastic_transform(image: Bytes, constants: SeverityConstants, random: np.random.Generator) -> Bytes:
    """Warp by the affine map, then by the displacement field; both bilinear, both with reflected borders."""
    strength, sigma, jitter = constants
    height, width = image.shape[:2]
    shifts = random.uniform(-jitter, jitter, size=(3, 2))
    noise = random.random((2, height, width)) * 2.0 - 1.0
    unit = image.astype(np.float32) / np.float32(255.0)
    displacement = (strength * smooth_reflected(noise, sigma)).astype(np.float32)
    return truncate(displaced(warped(unit, shifts), displacement))


def warped(image: Single, shifts: Double) -> Single:
    """[H, W, C] under the affine map that moves three points (column, row) by `shifts`."""
    height, width = image.shape[:2]
    centre, reach = np.array([width // 2, height // 2]), min(height, width) // 3
    points = centre + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    # An output pixel reads the inverse map, so the moved points are the known side.
    inverse = np.linalg.solve(np.column_stack([points + shifts, np.ones(3)]), points.astype(np.float64)).T
    out = np.empty(image.shape, dtype=np.float32)
    _sample_affine(image, inverse, out)
    return out


def displaced(image: Single, displacement: Single) -> Single:
    """[H, W, C] read at each pixel plus its displacement [2, H, W], columns first."""
    out = np.empty(image.shape, dtype=np.float32)
    _sample_displaced(image, displacement, out)
    return out


@compiled
def _around_edge_pixels(i: int, size: int) -> int:
    """Index of the border extension c b | a b c | b a."""
    period = max(2 * size - 2, 1)
    i = i % period
    return min(i, period - i)


@compiled
def _around_edges(i: int, size: int) -> int:
    """Index of the border extension b a | a b c | c b."""
    i = i % (2 * size)
    return min(i, 2 * size - 1 - i)


@compiled
def _blend(image: Single, y0: int, y1: int, x0: int, x1: int, down: float, right: float, out: Single) -> None:
    """One bilinear sample, all channels."""
    for channel in range(3):
        top = image[y0, x0, channel] + right * (image[y0, x1, channel] - image[y0, x0, channel])
        bottom = image[y1, x0, channel] + right * (image[y1, x1, channel] - image[y1, x0, channel])
        out[channel] = top + down * (bottom - top)


@compiled
def _sample_affine(image: Single, inverse: Double, out: Single) -> None:
    height, width = image.shape[:2]
    for row in range(height):
        for column in range(width):
            x = inverse[0, 0] * column + inverse[0, 1] * row + inverse[0, 2]
            y = inverse[1, 0] * column + inverse[1, 1] * row + inverse[1, 2]
            x0, y0 = int(np.floor(x)), int(np.floor(y))
            down, right = y - y0, x - x0
            x1, y1 = x0 + 1, y0 + 1
            if x0 < 0 or y0 < 0 or x1 >= width or y1 >= height:
                x0, x1 = _around_edge_pixels(x0, width), _around_edge_pixels(x1, width)
                y0, y1 = _around_edge_pixels(y0, height), _around_edge_pixels(y1, height)
            _blend(image, y0, y1, x0, x1, down, right, out[row, column])


@compiled
def _sample_displaced(image: Single, displacement: Single, out: Single) -> None:
    height, width = image.shape[:2]
    for row in range(height):
        for column in range(width):
            x, y = column + float(displacement[0, row, column]), row + float(displacement[1, row, column])
            x0, y0 = int(np.floor(x)), int(np.floor(y))
            down, right = y - y0, x - x0
            x1, y1 = x0 + 1, y0 + 1
            if x0 < 0 or y0 < 0 or x1 >= width or y1 >= height:
                x0, x1 = _around_edges(x0, width), _around_edges(x1, width)
                y0, y1 = _around_edges(y0, height), _around_edges(y1, height)
            _blend(image, y0, y1, x0, x1, down, right, out[row, column])
