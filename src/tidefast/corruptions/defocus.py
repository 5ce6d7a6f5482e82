"""Defocus blur: the image of a point through a round aperture is a disk."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from tidefast.corruptions.images import Bytes, Double, Single, truncate, unit
from tidefast.corruptions.severity import SeverityConstants


@lru_cache(maxsize=64)
def disk(radius: float, sigma: float) -> Single:
    """A disk of unit mass with a softened rim.

    Softening reflects at the kernel's own border and is not normalised again, so a disk that touches the border
    brightens the picture by about one percent; the published data have that too.
    """
    reach, window = (8.0, 3) if radius <= 8 else (radius, 5)
    axis = np.arange(-reach, reach + 1)
    mask = (axis[:, None] ** 2 + axis**2 <= radius**2).astype(np.float32)
    mask /= mask.sum()
    return np.asarray(cv2.GaussianBlur(mask, (window, window), sigmaX=sigma), dtype=np.float32)


def defocus(image: Double, radius: float, sigma: float) -> Double:
    """Correlate a unit image [H, W, C] with the disk, borders reflected around the edge pixel."""
    return np.asarray(cv2.filter2D(image, -1, disk(radius, sigma)), dtype=np.float64)


def defocus_blur(image: Bytes, constants: SeverityConstants) -> Bytes:
    """Blur with a disk of the given radius."""
    return truncate(defocus(unit(image), *constants))
