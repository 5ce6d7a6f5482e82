"""The images that come with the package; docs/bundled.md is their data card."""

from __future__ import annotations

from importlib import resources

from holdfast.datasets.cifar10 import CLASSES
from holdfast.datasets.imageset import ImageSet
from holdfast.datasets.packing import unpack

FILE = "bundled_cifar10.xz"


def bundled() -> ImageSet:
    """The first 300 images of each class of the CIFAR-10 test split, in their order there.

    `origins` are their positions in the test split. Nothing was ever trained on them.

    >>> images, labels = bundled()
    >>> images.shape, labels.shape
    ((3000, 32, 32, 3), (3000,))
    """
    images, labels, origins = unpack(resources.files("holdfast.datasets").joinpath(FILE).read_bytes())
    return ImageSet(images, labels, CLASSES, origins)
