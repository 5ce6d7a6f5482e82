"""The ImageNet-C family of image corruptions at any severity, on batches, with the same bits in any batching."""

from holdfast.corruptions.batch import corrupt
from holdfast.corruptions.names import CCC, EXTRA, IMAGENET_C, names
from holdfast.corruptions.severity import SCALES

__all__ = ["CCC", "EXTRA", "IMAGENET_C", "SCALES", "corrupt", "names"]
