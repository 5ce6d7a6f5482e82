"""Spatter: drops of water, or splashes of mud, on the lens."""

from __future__ import annotations

import cv2
import numpy as np

from tidefast.corruptions.gaussian import smooth
from tidefast.corruptions.images import Bytes, Double, Single, truncate
from tidefast.corruptions.severity import SeverityConstants

WATER = np.array([175, 238, 238], dtype=np.float32) / np.float32(255.0)
MUD = np.array([63, 42, 20], dtype=np.float32) / np.float32(255.0)
_SHARPEN = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float32)


def spatter(image: Bytes, constants: SeverityConstants, random: np.random.Generator) -> Bytes:
    """Put the peaks of a smooth random field on the image, as water and as mud, each as strong as the severity says."""
    mean, deviation, sigma, threshold, water_strength, mud_sigma, mud_opacity = constants
    field = smooth(mean + deviation * random.standard_normal((*image.shape[:2], 1)), sigma)[..., 0]
    out = image.astype(np.float32) / np.float32(255.0)
    if water_strength > 0:
        layer = np.float32(water_strength) * water(np.where(field < threshold, 0.0, field))
        out = np.clip(out + layer[..., None] * WATER, 0.0, 1.0)
    if mud_opacity > 0:
        layer = np.float32(mud_opacity) * mud(field > threshold, mud_sigma)
        out = out * (1 - layer[..., None]) + layer[..., None] * MUD
    return truncate(out)


def water(field: Double) -> Single:
    """Drops [H, W] with bright rims, the strongest at one."""
    liquid = truncate(field)
    distance = cv2.distanceTransform(255 - cv2.Canny(liquid, 50, 150), cv2.DIST_L2, 5)
    rounded = cv2.equalizeHist(cv2.blur(np.minimum(distance, 20.0), (3, 3)).astype(np.uint8))
    rims = cv2.blur(cv2.filter2D(rounded, cv2.CV_8U, _SHARPEN), (3, 3))
    layer = liquid.astype(np.float32) * rims.astype(np.float32)
    highest = layer.max()
    return np.asarray(layer / highest if highest > 0 else layer, dtype=np.float32)  # a dry lens has no highest drop


def mud(splashes: np.typing.NDArray[np.bool_], sigma: float) -> Single:
    """Opacity [H, W] of splashes with soft but narrow edges."""
    layer = smooth(splashes.astype(np.float64)[..., None], sigma)[..., 0].astype(np.float32)
    return np.where(layer < np.float32(0.8), np.float32(0.0), layer)
