"""Brightness, contrast and saturation."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from tidefast.corruptions.compiled import compiled
from tidefast.corruptions.images import Bytes, Double, truncate
from tidefast.corruptions.severity import SeverityConstants


def brightness(image: Bytes, constants: SeverityConstants) -> Bytes:
    """Raise the HSV value; hue and saturation stay."""
    out = np.empty(image.shape, dtype=np.uint8)
    _look_up_by_value(image.reshape(-1, 3), _brighter(*constants), out.reshape(-1, 3))
    return out


@lru_cache(maxsize=32)
def _brighter(amount: float) -> Bytes:
    """The new level for each (HSV value, level) of the old: all channels grow by the same factor."""
    value, level = np.arange(256)[:, None] / 255.0, np.arange(256)[None, :] / 255.0
    raised = np.minimum(value + amount, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # As HSV has it, so that the largest and the smallest channel round as they do there.
        return truncate(np.where(value > 0, raised * (1.0 - (value - level) / value), raised))


@compiled
def _look_up_by_value(pixels: Bytes, table: Bytes, out: Bytes) -> None:
    for i in range(pixels.shape[0]):
        red, green, blue = pixels[i, 0], pixels[i, 1], pixels[i, 2]
        row = table[max(red, green, blue)]
        out[i, 0], out[i, 1], out[i, 2] = row[red], row[green], row[blue]


def contrast(image: Bytes, constants: SeverityConstants) -> Bytes:
    """Pull every channel towards its mean over the image."""
    (factor,) = constants
    mean = np.array(cv2.mean(image)[:3]) / 255.0
    levels = np.arange(256)[:, None] / 255.0
    table = truncate((levels - mean) * factor + mean)
    return np.asarray(cv2.LUT(image, table[None]), dtype=np.uint8)


def saturate(image: Bytes, constants: SeverityConstants) -> Bytes:
    """Scale and shift the HSV saturation; gray has hue red, so a shift turns it reddish."""
    factor, offset = constants
    out = np.empty(image.shape)
    _saturate(image.reshape(-1, 3), factor, offset, out.reshape(-1, 3))
    return truncate(out)


@compiled
def _saturate(pixels: Bytes, factor: float, offset: float, out: Double) -> None:
    for i in range(pixels.shape[0]):
        red, green, blue = pixels[i, 0] / 255.0, pixels[i, 1] / 255.0, pixels[i, 2] / 255.0
        value, low = max(red, green, blue), min(red, green, blue)
        if value == low:
            pale = value * (1.0 - min(max(offset, 0.0), 1.0))
            out[i, 0], out[i, 1], out[i, 2] = value, pale, pale
        else:
            saturation = min(max((value - low) / value * factor + offset, 0.0), 1.0)
            out[i, 0] = value * (1.0 - saturation * ((value - red) / (value - low)))
            out[i, 1] = value * (1.0 - saturation * ((value - green) / (value - low)))
            out[i, 2] = value * (1.0 - saturation * ((value - blue) / (value - low)))
