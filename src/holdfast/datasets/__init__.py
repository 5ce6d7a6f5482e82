"""Real images: the subset that comes with the package, and data sets and folders on disk."""

from holdfast.datasets.bundled import bundled
from holdfast.datasets.choice import Chosen, draw_subset, read_ids
from holdfast.datasets.cifar10 import cifar10
from holdfast.datasets.cifar_c import MappedImages, cifar_c
from holdfast.datasets.d109 import INDICES as D109_INDICES
from holdfast.datasets.d109 import d109
from holdfast.datasets.errors import DatasetError
from holdfast.datasets.folder import ImageFolder, folder
from holdfast.datasets.imagenet_c import imagenet_c
from holdfast.datasets.imageset import ImageSet
from holdfast.datasets.opening import open_images

open = open_images  # noqa: A001  # read as datasets.open(...); nothing here opens files

__all__ = [
    "D109_INDICES",
    "Chosen",
    "DatasetError",
    "ImageFolder",
    "ImageSet",
    "MappedImages",
    "bundled",
    "cifar10",
    "cifar_c",
    "d109",
    "draw_subset",
    "folder",
    "imagenet_c",
    "open",
    "read_ids",
]
