"""Zoom blur: the mean of the image at many magnifications; and the zoom itself, which snow uses too."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tidefast.corruptions.compiled import compiled
from tidefast.corruptions.images import Bytes, Double, Single, truncate
from tidefast.corruptions.severity import SeverityConstants

Indices = npt.NDArray[np.uint32]  # unsigned: no test for Python's negative indices in the loop


def factors(stop: float, step: float) -> Double:
    """The magnifications: from 1 up to, nominally, below `stop`.

    Rounding lets some lists reach `stop` itself, in the published data as here.
    """
    return np.arange(1.0, stop, step)


@lru_cache(maxsize=64)
def grid(size: int, magnifications: tuple[float, ...]) -> tuple[Indices, Single]:
    """Where each magnification of the centre of a row reads: the lower of two neighbours, and the other's weight."""
    lower = np.empty((len(magnifications), size), dtype=np.uint32)
    weight = np.empty((len(magnifications), size), dtype=np.float32)
    for k, factor in enumerate(magnifications):
        crop = math.ceil(size / factor)
        enlarged = round(crop * factor)
        pixels = np.arange(size) + (enlarged - size) // 2
        position = pixels * ((crop - 1) / (enlarged - 1))
        first = np.minimum(position.astype(np.int64), crop - 2)
        lower[k] = first + (size - crop) // 2
        weight[k] = position - first
    return lower, weight


def sum_of_zooms(planes: Single, magnifications: tuple[float, ...]) -> Single:
    """The sum of all magnifications of [C, H, W], each bilinear, centred, and cut to the same size."""
    out = np.zeros(planes.shape, dtype=np.float32)
    _add_zooms(planes, *grid(planes.shape[1], magnifications), *grid(planes.shape[2], magnifications), out)
    return out


@compiled
def _add_zooms(
    planes: Single, row_lower: Indices, row_weight: Single, column_lower: Indices, column_weight: Single, out: Single
) -> None:
    channels, height, width = planes.shape
    blended = np.empty(width, dtype=np.float32)
    for channel in range(channels):
        for y in range(height):
            total = out[channel, y]
            for k in range(row_lower.shape[0]):
                upper, lower = planes[channel, row_lower[k, y]], planes[channel, row_lower[k, y] + 1]
                weight = row_weight[k, y]
                for x in range(width):
                    blended[x] = upper[x] + weight * (lower[x] - upper[x])
                left = column_lower[k]
                for x in range(width):
                    value = blended[left[x]]
                    total[x] += value + column_weight[k, x] * (blended[left[x] + np.uint32(1)] - value)


def zoom_blur(image: Bytes, constants: SeverityConstants) -> Bytes:
    """Mean of the image and its zooms; magnification 1 is among them, so the image itself counts twice."""
    magnifications = tuple(factors(*constants).tolist())
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).astype(np.float32) / np.float32(255.0)
    mean = (planes + sum_of_zooms(planes, magnifications)) / np.float32(len(magnifications) + 1)
    return np.ascontiguousarray(truncate(mean).transpose(1, 2, 0))
