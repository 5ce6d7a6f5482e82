"""Motion blur: a one-sided streak at some angle."""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

from tidefast.corruptions.compiled import compiled
from tidefast.corruptions.images import Bytes, Double
from tidefast.corruptions.severity import SeverityConstants

Shifts = npt.NDArray[np.int64]


def streak(radius: float, sigma: float, degrees: float) -> tuple[Double, Shifts]:
    """Weights of the taps, largest at the pixel itself, and the (row, column) each of them reads."""
    steps = np.arange(2 * math.ceil(radius) + 1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exponents = np.where(steps > 0, steps**2 / (2.0 * sigma * sigma), 0.0)
    weights = np.exp(-exponents)
    angle = math.radians(degrees)
    offsets = np.ceil(np.outer(steps, (math.sin(angle), math.cos(angle))) - 0.5)
    return weights / weights.sum(), offsets.astype(np.int64)


def blur_along(image: Bytes, weights: Double, offsets: Shifts) -> Bytes:
    """Weighted sum of shifted copies of [H, W, C], edges replicated.

    Rounded to 16 bit and then cut to 8 bit: so did the image library that made the published data.
    """
    top, left = (max(0, -int(low)) for low in offsets.min(axis=0))
    bottom, right = (max(0, int(high)) for high in offsets.max(axis=0))
    padded = np.asarray(cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_REPLICATE), dtype=np.float64)
    height, width = image.shape[:2]
    channels = image.size // (height * width)
    out = np.empty((height, width * channels), dtype=np.uint8)
    starts = (offsets + np.array([top, left])) * np.array([1, channels])
    _sum_shifted(padded.reshape(padded.shape[0], -1), weights, starts, out)
    return out.reshape(image.shape)


@compiled
def _sum_shifted(padded: Double, weights: Double, starts: Shifts, out: Bytes) -> None:
    height, length = out.shape
    total = np.empty(length)
    for y in range(height):
        total[:] = 0.0
        for tap in range(weights.size):
            row = padded[y + starts[tap, 0], starts[tap, 1] :]
            weight = weights[tap]
            for i in range(length):
                total[i] += weight * row[i]
        for i in range(length):
            out[y, i] = np.uint8(np.uint32(257.0 * total[i] + 0.5) // np.uint32(257))


def motion_blur(image: Bytes, constants: SeverityConstants, random: np.random.Generator) -> Bytes:
    """Blur along one direction, up to 45 degrees from the horizontal."""
    radius, sigma = constants
    return blur_along(image, *streak(radius, sigma, random.uniform(-45.0, 45.0)))
