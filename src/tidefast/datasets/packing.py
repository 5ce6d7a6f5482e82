"""Small colour images in few bytes, without loss, read with numpy and the standard library alone.

Each value is stored as its difference from the plane through its three neighbours (left + above - above left) after
red and blue are stored as differences from green; LZMA does the rest. All arithmetic is modulo 256, so two running
sums undo it.
"""

from __future__ import annotations

import lzma

import numpy as np

from tidefast.datasets.errors import DatasetError
from tidefast.datasets.imageset import Labels, Pixels

_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]


def pack(images: Pixels, labels: Labels, origins: Labels) -> bytes:
    """Images uint8 [N, H, W, 3] with labels in 0..255 and origins [N] to bytes that carry a checksum."""
    red, green, blue = np.moveaxis(images, 3, 0)
    planes = np.stack([green, red - green, blue - green])
    for axis in (2, 3):
        planes = np.diff(planes, axis=axis, prepend=np.uint8(0))
    content = np.array(images.shape[:3], "<i4").tobytes() + origins.astype("<i4").tobytes()
    content += labels.astype(np.uint8).tobytes() + planes.tobytes()
    return lzma.compress(content, lzma.FORMAT_XZ, lzma.CHECK_SHA256, filters=_FILTERS)


def unpack(packed: bytes) -> tuple[Pixels, Labels, Labels]:
    """Images, labels and origins, as they were before `pack`.

    >>> images = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8)
    >>> again, labels, origins = unpack(pack(images, np.array([7, 1]), np.array([30, 40])))
    >>> np.array_equal(again, images), labels.tolist(), origins.tolist()
    (True, [7, 1], [30, 40])
    """
    try:
        content = lzma.decompress(packed, lzma.FORMAT_XZ)
    except (lzma.LZMAError, EOFError) as error:
        raise DatasetError(f"the packed images are truncated or damaged: {error}") from error
    count, height, width = (int(side) for side in np.frombuffer(content, "<i4", 3))
    origins = np.frombuffer(content, "<i4", count, 12).astype(np.int64)
    labels = np.frombuffer(content, np.uint8, count, 12 + 4 * count).astype(np.int64)
    planes = np.frombuffer(content, np.uint8, offset=12 + 5 * count).reshape(3, count, height, width)
    for axis in (2, 3):
        planes = np.cumsum(planes, axis=axis, dtype=np.uint8)
    green, red, blue = planes[0], planes[1] + planes[0], planes[2] + planes[0]
    return np.stack([red, green, blue], axis=3), labels, origins
