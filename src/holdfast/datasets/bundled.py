"""The images that come with the package; docs/bundled.md is their data card."""

from __future__ import annotations

import functools
from importlib import resources

from holdfast.datasets.cifar10 import CLASSES
from holdfast.datasets.imageset import ImageSet, Labels, Pixels
from holdfast.datasets.packing import unpack

FILE = "bundled_cifar10.xz"


def bundled() -> ImageSet:
    """The first 300 images of each class of the CIFAR-10 test split, in their order there.

    `origins` are their positions in the test split. Nothing was ever trained on them. Each caller gets arrays of its
    own; only the first call of a process has to unpack them.

    >>> images, labels = bundled()
    >>> images.shape, labels.shape
    ((3000, 32, 32, 3), (3000,))
    """
    images, labels, origins = _unpacked()
    return ImageSet(images.copy(), labels.copy(), CLASSES, origins.copy())


@functools.cache
def _unpacked() -> tuple[Pixels, Labels, Labels]:
    return unpack(resources.files("holdfast.datasets").joinpath(FILE).read_bytes())
