"""The images that come with the package; docs/bundled.md is their data card."""

from __future__ import annotations

import functools
from importlib import resources

from tidefast.core.validation import require_choice
from tidefast.datasets.cifar10 import CLASSES
from tidefast.datasets.imageset import ImageSet, Labels, Pixels
from tidefast.datasets.packing import unpack

FILES = {"test": "bundled_cifar10.xz", "train": "bundled_cifar10_train.xz"}


def bundled(split: str = "test") -> ImageSet:
    """The first images of each class of a split of CIFAR-10, in their order there: 300 of "test", 200 of "train".

    `origins` are their positions in the split. Nothing was ever trained on those of the test split; those of the
    training split are source data for methods that need some. Each caller gets arrays of its own; only the first
    call of a process has to unpack them.

    >>> images, labels = bundled()
    >>> images.shape, labels.shape, len(bundled("train"))
    ((3000, 32, 32, 3), (3000,), 2000)
    """
    require_choice("split", split, FILES)
    images, labels, origins = _unpacked(FILES[split])
    return ImageSet(images.copy(), labels.copy(), CLASSES, origins.copy())


@functools.cache
def _unpacked(file: str) -> tuple[Pixels, Labels, Labels]:
    return unpack(resources.files("tidefast.datasets").joinpath(file).read_bytes())
