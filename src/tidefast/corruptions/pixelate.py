"""Pixelate: shrink by box averages, enlarge again."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tidefast.corruptions.compiled import compiled
from tidefast.corruptions.images import Bytes
from tidefast.corruptions.severity import SeverityConstants

Windows = npt.NDArray[np.int64]

# Pillow's fixed point: weights have 22 fractional bits, sums are rounded back to bytes after each of the two passes.
_FRACTION_BITS = 22


@lru_cache(maxsize=128)
def windows(size: int, new_size: int) -> Windows:
    """First input pixel, count and weight of each output pixel's box.

    A pixel is inside when its centre is, the upper end included. A box is one pixel wide when enlarging, which makes
    that the nearest pixel.
    """
    scale = size / new_size
    centres = (np.arange(new_size)[:, None] + 0.5) * scale
    distance = (np.arange(size) + 0.5 - centres) / max(scale, 1.0)
    inside = (distance > -0.5) & (distance <= 0.5)
    counts = inside.sum(axis=1)
    return np.stack([inside.argmax(axis=1), counts, np.floor(2.0**_FRACTION_BITS / counts + 0.5)]).astype(np.int64)


def resize(image: Bytes, height: int, width: int) -> Bytes:
    """[H, W, 3] at another size by box averages, columns first."""
    narrow = np.empty((image.shape[0], width, 3), dtype=np.uint8)
    out = np.empty((height, width, 3), dtype=np.uint8)
    _merge_columns(image, windows(image.shape[1], width), narrow)
    _merge_rows(narrow.reshape(image.shape[0], -1), windows(image.shape[0], height), out.reshape(height, -1))
    return out


@compiled
def _merge_columns(image: Bytes, boxes: Windows, out: Bytes) -> None:
    half = np.uint32(1 << (_FRACTION_BITS - 1))
    for x in range(boxes.shape[1]):
        first, count, weight = boxes[0, x], boxes[1, x], np.uint32(boxes[2, x])
        for y in range(image.shape[0]):
            for channel in range(3):
                total = np.uint32(image[y, first, channel])
                for i in range(1, count):
                    total += np.uint32(image[y, first + i, channel])
                out[y, x, channel] = np.uint8((total * weight + half) >> np.uint32(_FRACTION_BITS))


@compiled
def _merge_rows(image: Bytes, boxes: Windows, out: Bytes) -> None:
    half = np.uint32(1 << (_FRACTION_BITS - 1))
    total = np.empty(image.shape[1], dtype=np.uint32)
    for y in range(boxes.shape[1]):
        first, count, weight = boxes[0, y], boxes[1, y], np.uint32(boxes[2, y])
        if count == 1:
            out[y] = image[first]
            continue
        total[:] = half
        for i in range(count):
            row = image[first + i]
            for x in range(total.size):
                total[x] += np.uint32(row[x]) * weight
        for x in range(total.size):
            out[y, x] = np.uint8(total[x] >> np.uint32(_FRACTION_BITS))


def pixelate(image: Bytes, constants: SeverityConstants) -> Bytes:
    """Shrink both sides to a share of themselves and enlarge back."""
    (share,) = constants
    height, width = image.shape[:2]
    small = resize(image, max(int(height * share), 1), max(int(width * share), 1))
    return resize(small, height, width)
