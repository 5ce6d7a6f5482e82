"""Image files to arrays; Pillow is imported only when one is read."""

from __future__ import annotations

import os
from types import ModuleType
from typing import IO

import numpy as np

from tidefast.datasets.errors import DatasetError
from tidefast.datasets.imageset import Pixels
from tidefast.errors import how_to_install


def require_pillow() -> ModuleType:
    """Pillow's `PIL.Image`, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"reading image files needs Pillow: {how_to_install('data')}") from error
    return Image


def read_rgb(path: str | os.PathLike[str] | IO[bytes], *, resize: int | None = None, crop: int | None = None) -> Pixels:
    """An image file, by path or open, as uint8 [H, W, 3]; whatever is wrong with it is a DatasetError that names it.

    `resize` scales the shorter side to that length (bilinear), `crop` then cuts that square out of the centre.
    """
    image_module = require_pillow()
    try:
        with image_module.open(path) as file:
            picture = file.convert("RGB")
    except FileNotFoundError:
        raise
    # A damaged header surfaces as SyntaxError, a damaged body as OSError or ValueError, a hostile size as its own.
    except (OSError, SyntaxError, ValueError, EOFError, image_module.DecompressionBombError) as error:
        raise DatasetError(f"{path} is truncated, damaged or no image: {error}") from error
    if resize is not None:
        scale = resize / min(picture.size)
        picture = picture.resize(
            tuple(max(resize, round(side * scale)) for side in picture.size), image_module.Resampling.BILINEAR
        )
    if crop is not None:
        width, height = picture.size
        if min(width, height) < crop:
            raise DatasetError(
                f"{path} is {width}x{height} and cannot be cropped to {crop}x{crop}: give resize={crop} or more"
            )
        left, top = (width - crop) // 2, (height - crop) // 2
        picture = picture.crop((left, top, left + crop, top + crop))
    return np.array(picture, np.uint8)
