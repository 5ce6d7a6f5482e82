"""Real images: CIFAR-10 from disk, folders of classes, and the subset that comes with the package."""

from holdfast.datasets.bundled import bundled
from holdfast.datasets.cifar10 import cifar10
from holdfast.datasets.errors import DatasetError
from holdfast.datasets.folder import ImageFolder, folder
from holdfast.datasets.imageset import ImageSet

__all__ = ["DatasetError", "ImageFolder", "ImageSet", "bundled", "cifar10", "folder"]
