"""Real images: the subset that comes with the package, and data sets and folders on disk."""

from tidefast.datasets.bundled import bundled
from tidefast.datasets.bundled_1k import photo_credits, photos
from tidefast.datasets.cifar10 import cifar10
from tidefast.datasets.cifar_c import MappedImages, cifar_c
from tidefast.datasets.classes import ClassesGiven, imagenet_ids, matched, read_classes, require_match
from tidefast.datasets.d109 import INDICES as D109_INDICES
from tidefast.datasets.d109 import d109
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.folder import ImageFolder, folder
from tidefast.datasets.imagenet_c import imagenet_c
from tidefast.datasets.imageset import ImageSet, ModelClasses
from tidefast.datasets.opening import open_images
from tidefast.datasets.parts import part_of
from tidefast.datasets.subset import Subset, draw_subset, read_ids
from tidefast.datasets.tensors import LabelledImages, as_tensor, is_prepared, source_batches
from tidefast.datasets.unlabelled import open_unlabelled

open = open_images  # noqa: A001  # read as datasets.open(...); nothing here opens files

__all__ = [
    "D109_INDICES",
    "ClassesGiven",
    "DatasetError",
    "ImageFolder",
    "ImageSet",
    "LabelledImages",
    "MappedImages",
    "ModelClasses",
    "Subset",
    "as_tensor",
    "bundled",
    "cifar10",
    "cifar_c",
    "d109",
    "draw_subset",
    "folder",
    "imagenet_c",
    "imagenet_ids",
    "is_prepared",
    "matched",
    "open",
    "open_unlabelled",
    "part_of",
    "photo_credits",
    "photos",
    "read_classes",
    "read_ids",
    "require_match",
    "source_batches",
]
