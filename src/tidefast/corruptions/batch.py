"""The public call: one corruption at one severity on a batch of images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidefast.corruptions.names import canonical
from tidefast.corruptions.randomness import generator
from tidefast.corruptions.severity import Scale, SeverityConstants, constants, require_scale, require_severity
from tidefast.errors import how_to_install

MIN_SIDE = 8  # below this some of the constants stop meaning anything
_MAX_WORD = 2**64 - 1


def corrupt(
    images: npt.NDArray[np.uint8],
    name: str,
    severity: float,
    *,
    seed: int,
    scale: Scale = "imagenet",
    indices: Sequence[int] | npt.NDArray[np.integer] | None = None,
) -> npt.NDArray[np.uint8]:
    """Corrupt uint8 images [B, H, W, 3]; severity in [0, 5], where 0 changes nothing.

    `scale` picks the constants: "imagenet" for pictures of about 224 pixels, "cifar" for about 32. `indices` are the
    images' places in their stream (default 0, 1, ...): the randomness of an image follows from the seed, its index
    and the corruption's name alone, so it gets the same bits in any batch, order or process.

    >>> images = np.full((4, 32, 32, 3), 128, dtype=np.uint8)
    >>> whole = corrupt(images, "gaussian_noise", 2.5, seed=0, scale="cifar")
    >>> last_two = corrupt(images[2:], "gaussian_noise", 2.5, seed=0, scale="cifar", indices=[2, 3])
    >>> bool((whole[2:] == last_two).all())
    True
    """
    name = canonical(name)
    require_severity(severity)
    require_scale(scale)
    _require_images(images)
    places = _places(indices, len(images))
    _require_word("seed", seed)
    if severity == 0:
        return images.copy()
    return _corrupt(np.ascontiguousarray(images), name, constants(name, float(severity), scale), int(seed), places)


def _corrupt(
    images: npt.NDArray[np.uint8], name: str, values: SeverityConstants, seed: int, places: list[int]
) -> npt.NDArray[np.uint8]:
    # Here, so that names and constants can be had without OpenCV, SciPy and Numba.
    try:
        from tidefast.corruptions.recipes import DETERMINISTIC, RANDOM
    except ModuleNotFoundError as error:
        raise ImportError(f"image corruptions need {error.name!r}: {how_to_install('data')}") from error

    out = np.empty_like(images)
    if name in DETERMINISTIC:
        for i, image in enumerate(images):
            out[i] = DETERMINISTIC[name](image, values)
    else:
        for i, (image, place) in enumerate(zip(images, places, strict=True)):
            out[i] = RANDOM[name](image, values, generator(seed, place, name))
    return out


def _require_images(images: object) -> None:
    expected = "expected a uint8 NumPy array [B, H, W, 3] with levels 0..255"
    if not isinstance(images, np.ndarray):
        raise TypeError(f"{expected}, got {type(images).__name__}; convert with numpy.asarray or tensor.numpy()")
    if images.dtype != np.uint8:
        raise TypeError(f"{expected}, got dtype {images.dtype}; scale to 0..255 and call .astype(numpy.uint8)")
    if images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(f"{expected}, got shape {images.shape}; {_shape_hint(images.shape)}")
    if min(images.shape[1:3]) < MIN_SIDE:
        raise ValueError(f"images must be at least {MIN_SIDE} pixels high and wide, got shape {images.shape}")


def _shape_hint(shape: tuple[int, ...]) -> str:
    if len(shape) == 3 and shape[2] == 3:
        return "add the batch axis with images[None]"
    if len(shape) == 4 and shape[1] == 3:
        return "move the channels last with images.transpose(0, 2, 3, 1)"
    return "bring the images to RGB, channels last"


def _places(indices: Sequence[int] | npt.NDArray[np.integer] | None, count: int) -> list[int]:
    if indices is None:
        return list(range(count))
    places = list(indices)
    if len(places) != count:
        raise ValueError(f"indices must name one place per image: got {len(places)} indices for {count} images")
    for place in places:
        _require_word("indices", place)
    return [int(place) for place in places]


def _require_word(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be whole numbers in [0, 2**64), got {value!r}")
    if not 0 <= int(value) <= _MAX_WORD:
        raise ValueError(f"{name} must be whole numbers in [0, 2**64), got {value!r}")
