"""Request bodies to pixels; sizes are checked before anything is decoded."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tidefast.datasets import as_tensor
from tidefast.datasets.picture import require_pillow
from tidefast.serve.refused import RefusedError

ImageArray: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
"""uint8 [N, H, W, 3], or float32 [N, 3, H, W] in [0, 1]."""

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG"}
NPY = "application/x-npy"


def size_of(pixels: ImageArray) -> tuple[int, int]:
    """Height and width."""
    height, width = pixels.shape[1:3] if pixels.dtype == np.uint8 else pixels.shape[2:4]
    return int(height), int(width)


def require_size(given: tuple[int, int], expected: tuple[int, int]) -> None:
    """Refuse images of another height and width."""
    if given != expected:
        raise RefusedError(
            "unfit", f"images must be {expected[1]}x{expected[0]} (width x height), got {given[1]}x{given[0]}"
        )


def measured(files: Sequence[bytes], max_pixels: int, size: tuple[int, int] | None = None) -> int:
    """Bytes that image files of one size will take; as long as no `size` is expected, `max_pixels` holds for all.

    >>> import PIL.Image
    >>> file = io.BytesIO()
    >>> PIL.Image.new("L", (5, 4)).save(file, "png")
    >>> measured([file.getvalue()] * 2, max_pixels=100)
    120
    """
    sizes = [_size_in(file, max_pixels) for file in files]
    if len(set(sizes)) > 1:
        listed = ", ".join(f"{width}x{height}" for height, width in sorted(set(sizes))[:4])
        raise RefusedError("unfit", f"the images of a request must have one size, got {listed}")
    height, width = sizes[0]
    if size is not None:
        require_size((height, width), size)
    elif len(files) * height * width > max_pixels:  # small files may hold images that fill the memory together
        raise RefusedError(
            "too_large",
            f"{len(files)} images of {width}x{height}: of the first ones at most {max_pixels} pixels are "
            "accepted, send fewer",
        )
    return 3 * len(files) * height * width


def decoded(files: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    """Image files of one size as uint8 [N, H, W, 3]; `measured` comes first.

    >>> import PIL.Image
    >>> file = io.BytesIO()
    >>> PIL.Image.new("L", (5, 4)).save(file, "png")
    >>> decoded([file.getvalue()] * 2).shape
    (2, 4, 5, 3)
    """
    return np.stack([_decoded(file) for file in files])


def _size_in(file: bytes, max_pixels: int) -> tuple[int, int]:
    """Height and width by the header, which is all that is read."""
    with _opened(file) as picture:
        width, height = picture.size
    if width * height > max_pixels:
        raise RefusedError("too_large", f"an image is {width}x{height}; at most {max_pixels} pixels are accepted")
    return height, width


def _decoded(file: bytes) -> npt.NDArray[np.uint8]:
    with _opened(file) as picture:
        if picture.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip; of colours it takes the high byte
            grey = (np.asarray(picture) >> 8).astype(np.uint8)
            return np.repeat(grey[..., None], 3, axis=2)
        return np.asarray(picture.convert("RGB"), np.uint8)


@contextlib.contextmanager
def _opened(file: bytes) -> Iterator[Any]:
    """An image as Pillow sees it; whatever goes wrong with it is a RefusedError."""
    pillow = require_pillow()
    try:
        with pillow.open(io.BytesIO(file), formats=tuple(FORMATS.values())) as picture:
            yield picture
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as error:
        raise RefusedError("too_large", f"an image is too large: {error}") from error
    except Exception as error:  # Pillow's readers raise whatever a damaged file makes them stumble over
        raise RefusedError("malformed", "an image is truncated, damaged, or neither PNG nor JPEG") from error


def unpacked(file: bytes, max_pixels: int) -> ImageArray:
    """The array in an .npy file, without a copy and without pickle.

    >>> file = io.BytesIO()
    >>> np.save(file, np.zeros((2, 4, 5, 3), np.uint8))
    >>> unpacked(file.getvalue(), max_pixels=100).shape
    (2, 4, 5, 3)
    """
    stream = io.BytesIO(file)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, kind = read[version](stream)
    except Exception as error:  # the header is a Python literal, and can be wrong in as many ways
        raise RefusedError("malformed", "the body is no .npy file of version 1 or 2") from error
    if fortran:
        raise RefusedError("unfit", f"{_EXPECTED}, got {kind} {list(shape)} in Fortran order")
    require_shape(kind, shape, max_pixels)
    rest = len(file) - stream.tell()
    if math.prod(shape) * kind.itemsize != rest:
        raise RefusedError("malformed", f"the .npy file promises {kind} {list(shape)}, but holds {rest} bytes of data")
    pixels: ImageArray = np.frombuffer(file, kind, offset=stream.tell()).reshape(shape)
    if kind != np.uint8:
        require_range(pixels)
    return pixels


_EXPECTED = "images must be uint8 [N, H, W, 3] or float32 [N, 3, H, W], in C order and little-endian"


def require_shape(kind: np.dtype[Any], shape: tuple[int, ...], max_pixels: int) -> None:
    """Refuse arrays that are no images, or larger ones than are accepted."""
    channels_last = kind == np.uint8
    if kind not in (np.dtype(np.uint8), np.dtype("<f4")) or len(shape) != 4:
        raise RefusedError("unfit", f"{_EXPECTED}, got {kind} {list(shape)}")
    if shape[3 if channels_last else 1] != 3 or min(shape) < 1:
        raise RefusedError("unfit", f"{_EXPECTED}, got {kind} {list(shape)}")
    height, width = shape[1:3] if channels_last else shape[2:]
    if height * width > max_pixels:
        raise RefusedError("too_large", f"an image is {width}x{height}; at most {max_pixels} pixels are accepted")


def require_range(pixels: npt.NDArray[Any]) -> None:
    """Floats lie in [0, 1]; what is not finite passes, because the adapter counts and survives it."""
    with np.errstate(invalid="ignore"):
        outside = ((pixels < 0) | (pixels > 1)) & np.isfinite(pixels)
    if outside.any():
        raise RefusedError("unfit", f"float32 images must lie in [0, 1], got {float(pixels[outside][0]):g}")


def as_batch(parts: Sequence[ImageArray]) -> Tensor:
    """All images as float32 [N, 3, H, W], contiguous; levels are divided by 255."""
    levels = [part for part in parts if _holds_levels(part)]
    if len(levels) == len(parts):
        return as_tensor(np.concatenate(levels))
    # Copies: torch wants memory that it may write to.
    return torch.cat([as_tensor(part.copy()) if _holds_levels(part) else torch.tensor(part) for part in parts])


def _holds_levels(part: ImageArray) -> TypeGuard[npt.NDArray[np.uint8]]:
    return part.dtype == np.uint8
