"""Small images as PNG, for the page to carry."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from tidefast.report.data import Pixels


def encode(image: Pixels) -> bytes:
    """An image uint8 [height, width, 3] as the bytes of a PNG file.

    >>> encode(np.zeros((2, 2, 3), np.uint8))[:8] == bytes([137]) + b"PNG" + bytes([13, 10, 26, 10])
    True
    """
    height, width, channels = image.shape
    if image.dtype != np.uint8 or channels != 3:
        raise TypeError(f"expected uint8 [height, width, 3], got {image.dtype} {list(image.shape)}")
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row starts with its filter: none
    rows[:, 1:] = image.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def address(image: Pixels) -> str:
    """The image as an address that needs no request."""
    return "data:image/png;base64," + base64.b64encode(encode(image)).decode("ascii")


def sheet(images: Pixels, columns: int) -> Pixels:
    """Images [n, height, width, 3] side by side in rows of `columns`; what is missing in the last row stays black."""
    count, height, width, _ = images.shape
    rows = -(-count // columns)
    whole = np.zeros((rows * height, columns * width, 3), np.uint8)
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        whole[row * height : (row + 1) * height, column * width : (column + 1) * width] = image
    return whole


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
