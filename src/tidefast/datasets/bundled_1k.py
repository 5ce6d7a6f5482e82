"""A thousand photos with ImageNet's labels that come with the package; docs/bundled.md is their data card."""

from __future__ import annotations

import csv
import functools
import io
import zipfile

import numpy as np

from tidefast.core.bundle import bundled_1k
from tidefast.datasets.imageset import ImageSet, Labels, Pixels
from tidefast.datasets.picture import read_rgb

PHOTOS, CREDITS = "photos.zip", "photos.csv"
CLASSES = tuple(map(str, range(1000)))


def photos() -> ImageSet:
    """1,000 photos of 128 pixels with labels of ImageNet (430 of its 1,000 classes), in the order of `photo_credits`.

    Each caller gets arrays of its own; only the first call of a process has to decode them, which needs Pillow.

    >>> images, labels = photos()
    >>> images.shape, len(set(labels.tolist()))
    ((1000, 128, 128, 3), 430)
    """
    images, labels = _decoded()
    return ImageSet(images.copy(), labels.copy(), CLASSES)


def photo_credits() -> list[dict[str, str]]:
    """For each photo its file, class, licence, author and page; all were resized and compressed anew.

    >>> sorted(photo_credits()[0])
    ['author', 'file', 'imagenet_class', 'licence', 'page']
    """
    return list(csv.DictReader(io.StringIO(bundled_1k(CREDITS).decode())))


@functools.cache
def _decoded() -> tuple[Pixels, Labels]:
    rows = photo_credits()
    with zipfile.ZipFile(io.BytesIO(bundled_1k(PHOTOS))) as archive:
        images = np.stack([read_rgb(io.BytesIO(archive.read(row["file"]))) for row in rows])
    return images, np.array([int(row["imagenet_class"]) for row in rows], np.int64)
