"""Fog: a plasma field of midpoint displacements, added in front of a dimmed image."""

from __future__ import annotations

import numpy as np

from tidefast.corruptions.compiled import compiled
from tidefast.corruptions.images import Bytes, Double
from tidefast.corruptions.severity import SeverityConstants


def plasma(side: int, decay: float, uniforms: Double) -> Double:
    """A periodic fractal field with range [0, 1] from side**2 - 1 uniforms on [-1, 1).

    Each round halves the grid: first the centres of its squares, then the two kinds of edge midpoints, each the mean
    of four neighbours plus noise. The noise has amplitude w**2, not w: so it is in the published data.
    """
    field = np.zeros((side, side))
    _displace_midpoints(field, decay, uniforms)
    field -= field.min()
    return np.asarray(field / field.max())


@compiled
def _displace_midpoints(field: Double, decay: float, uniforms: Double) -> None:
    side = field.shape[0]
    wrap = side - 1  # side is a power of two
    step, amplitude, used = side, 100.0, 0
    while step >= 2:
        half, noise, cells = step // 2, amplitude * amplitude, (side // step) ** 2
        for y in range(0, side, step):
            for x in range(0, side, step):
                down, right = (y + step) & wrap, (x + step) & wrap
                corners = field[y, x] + field[down, x] + (field[y, right] + field[down, right])
                field[y + half, x + half] = corners / 4 + noise * uniforms[used]
                used += 1
        for y in range(0, side, step):
            for x in range(0, side, step):
                above, left = (y - half) & wrap, (x - half) & wrap
                down, right = (y + step) & wrap, (x + step) & wrap
                corner, centre = field[y, x], field[y + half, x + half]
                beside = centre + field[above, x + half] + corner + field[y, right]
                below = centre + field[y + half, left] + corner + field[down, x]
                field[y, x + half] = beside / 4 + noise * uniforms[used]
                field[y + half, x] = below / 4 + noise * uniforms[used + cells]
                used += 1
        used += cells
        step, amplitude = half, amplitude / decay


def fog(image: Bytes, constants: SeverityConstants, random: np.random.Generator) -> Bytes:
    """Add the field to all channels alike and dim, so that the brightest value stays the brightest."""
    thickness, decay = constants
    height, width = image.shape[:2]
    side = 1 << (max(height, width) - 1).bit_length()
    field = plasma(side, decay, random.random(side * side - 1) * 2.0 - 1.0)
    out = np.empty(image.shape, dtype=np.uint8)
    _veil(image, field, thickness, out)
    return out


@compiled
def _veil(image: Bytes, field: Double, thickness: float, out: Bytes) -> None:
    height, width = image.shape[:2]
    brightest = image.max() / 255.0
    scale = brightest / (brightest + thickness)
    for y in range(height):
        for x in range(width):
            for channel in range(3):
                value = (image[y, x, channel] / 255.0 + thickness * field[y, x]) * scale
                out[y, x, channel] = np.uint8(min(max(value, 0.0), 1.0) * 255.0)
