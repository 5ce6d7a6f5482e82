"""Frost: a crop of a frosted window in front of the image."""

from __future__ import annotations

import numpy as np

from tidefast.corruptions.compiled import compiled
from tidefast.corruptions.frost_texture import WINDOWS, texture
from tidefast.corruptions.images import Bytes
from tidefast.corruptions.severity import SeverityConstants


def frost(image: Bytes, constants: SeverityConstants, random: np.random.Generator) -> Bytes:
    """Weighted sum of the image and a random crop of one of the textures, which repeat without a seam."""
    clear, frosted, size = constants
    window = texture(int(random.integers(len(WINDOWS))), size)
    top, left = (int(random.integers(side)) for side in window.shape[:2])
    out = np.empty(image.shape, dtype=np.uint8)
    _overlay(image, window, top, left, clear, frosted, out)
    return out


@compiled
def _overlay(image: Bytes, window: Bytes, top: int, left: int, clear: float, frosted: float, out: Bytes) -> None:
    height, width = image.shape[:2]
    rows, columns = window.shape[:2]
    for y in range(height):
        source_y = (top + y) % rows
        for x in range(width):
            source_x = (left + x) % columns
            for channel in range(3):
                value = clear * image[y, x, channel] + frosted * window[source_y, source_x, channel]
                out[y, x, channel] = np.uint8(min(value, 255.0))
