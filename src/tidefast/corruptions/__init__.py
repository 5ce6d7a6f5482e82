"""The ImageNet-C family of image corruptions at any severity, on batches, with the same bits in any batching."""

from tidefast.corruptions.batch import corrupt
from tidefast.corruptions.names import CCC, EXTRA, IMAGENET_C, names
from tidefast.corruptions.severity import SCALES

__all__ = ["CCC", "EXTRA", "IMAGENET_C", "SCALES", "corrupt", "names"]
