"""The images that a stream draws from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidefast.corruptions.severity import Scale
from tidefast.datasets import ImageSet, LabelledImages, bundled

_SCALE_BORDER = 85  # pixels: halfway, by ratio, between the 32 of CIFAR and the 224 of ImageNet

Data: TypeAlias = LabelledImages | tuple[npt.ArrayLike, npt.ArrayLike]


def labelled_images(data: Data | None) -> LabelledImages:
    """The images a caller meant: the bundled ones, a set, or a pair of arrays; never empty.

    >>> len(labelled_images((np.zeros((5, 32, 32, 3), np.uint8), [0, 1, 2, 1, 0])))
    5
    """
    if data is None:
        return bundled()
    images = _from_arrays(*data) if isinstance(data, tuple) and len(data) == 2 else data
    if isinstance(images, tuple) or not all(hasattr(images, need) for need in ("labels", "classes", "__getitem__")):
        raise TypeError(
            "data must be an ImageSet, an ImageFolder or a pair (images uint8 [N, H, W, 3], labels [N]), "
            f"got {type(data).__name__}"
        )
    if len(images) == 0:
        raise ValueError("the image set is empty: a stream needs at least one image")
    return images


def nearest_scale(images: LabelledImages) -> Scale:
    """The scale of corruption constants that is nearer to the size of the images.

    >>> nearest_scale(bundled())
    'cifar'
    """
    height, width = images[np.array([0])].images.shape[1:3]
    return "cifar" if min(height, width) < _SCALE_BORDER else "imagenet"


def _from_arrays(images: npt.ArrayLike, labels: npt.ArrayLike) -> ImageSet:
    pixels, numbers = np.asarray(images), np.asarray(labels)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
        raise ValueError(
            f"images must be uint8 [N, H, W, 3] with levels 0..255, got {pixels.dtype} {list(pixels.shape)}"
            + _hint(pixels.shape, pixels.dtype)
        )
    if numbers.shape != pixels.shape[:1] or not (np.issubdtype(numbers.dtype, np.integer) or numbers.size == 0):
        raise ValueError(
            f"labels must be whole numbers [{len(pixels)}], one for each image, "
            f"got {numbers.dtype} {list(numbers.shape)}"
        )
    if numbers.size and numbers.min() < 0:
        raise ValueError(f"labels must be 0 or more, got {numbers.min()}")
    count = int(numbers.max()) + 1 if numbers.size else 0
    return ImageSet(pixels, numbers.astype(np.int64), tuple(map(str, range(count))))


def _hint(shape: Sequence[int], dtype: np.dtype[Any]) -> str:
    if len(shape) == 4 and shape[1] == 3 and shape[3] != 3:
        return "; move the channels last with images.transpose(0, 2, 3, 1)"
    if np.issubdtype(dtype, np.floating):
        return "; scale to 0..255 and call .astype(numpy.uint8)"
    return ""
