"""JPEG as CCC stores its images, and the way back."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt

from tidefast.datasets.picture import require_pillow

QUALITY = 85


def encode(image: npt.NDArray[np.uint8], quality: int = QUALITY) -> bytes:
    """An image uint8 [H, W, 3] as JPEG with optimised Huffman tables."""
    content = io.BytesIO()
    require_pillow().fromarray(image).save(content, "JPEG", quality=quality, optimize=True)
    return content.getvalue()


def decode(content: bytes) -> npt.NDArray[np.uint8]:
    """An image file of any kind as uint8 [H, W, 3]."""
    with require_pillow().open(io.BytesIO(content)) as picture:
        return np.array(picture.convert("RGB"), np.uint8)


def stored(images: npt.NDArray[np.uint8], quality: int) -> npt.NDArray[np.uint8]:
    """Images [B, H, W, 3] as they come back from JPEG files.

    >>> ramp = np.tile(np.arange(0, 256, 8, dtype=np.uint8)[None, :, None], (1, 32, 1, 3)).reshape(1, 32, 32, 3)
    >>> bool((stored(ramp, 85) != ramp).any()), int(np.abs(stored(ramp, 85).astype(int) - ramp).max()) < 8
    (True, True)
    """
    return np.stack([decode(encode(image, quality)) for image in images])
