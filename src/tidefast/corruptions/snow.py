"""Snow: flakes blown along one direction, twice, in front of a whitened image."""

from __future__ import annotations

import numpy as np

from tidefast.corruptions.compiled import compiled
from tidefast.corruptions.images import Bytes, Single, truncate
from tidefast.corruptions.motion import blur_along, streak
from tidefast.corruptions.severity import SeverityConstants
from tidefast.corruptions.zoom import sum_of_zooms


def snow(image: Bytes, constants: SeverityConstants, random: np.random.Generator) -> Bytes:
    """Whiten the image and add the flakes and the same flakes turned by 180 degrees."""
    mean, deviation, zoom, threshold, radius, sigma, original = constants
    normals = random.standard_normal(image.shape[:2], dtype=np.float32)
    layer = flakes(mean + deviation * normals, zoom, threshold)
    layer = blur_along(layer, *streak(radius, sigma, random.uniform(-135.0, -45.0)))
    out = np.empty(image.shape, dtype=np.float32)
    _snow_over(image, layer, np.float32(original), out)
    return truncate(out)


def flakes(field: Single, zoom: float, threshold: float) -> Bytes:
    """The peaks of a magnified random field [H, W]."""
    field = sum_of_zooms(field[None], (zoom,))[0]
    return truncate(np.where(field < np.float32(threshold), np.float32(0.0), field))


@compiled
def _snow_over(image: Bytes, layer: Bytes, original: np.float32, out: Single) -> None:
    height, width = layer.shape
    full = np.float32(255.0)
    for y in range(height):
        for x in range(width):
            red, green, blue = image[y, x, 0] / full, image[y, x, 1] / full, image[y, x, 2] / full
            gray = np.float32(0.299) * red + np.float32(0.587) * green + np.float32(0.114) * blue
            white = np.float32(1.5) * gray + np.float32(0.5)
            fallen = layer[y, x] / full + layer[height - 1 - y, width - 1 - x] / full
            rest = np.float32(1.0) - original
            out[y, x, 0] = original * red + rest * max(red, white) + fallen
            out[y, x, 1] = original * green + rest * max(green, white) + fallen
            out[y, x, 2] = original * blue + rest * max(blue, white) + fallen
