"""Image sets by one word: a name or a path."""

from __future__ import annotations

import functools
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tidefast.core.specification import Specification
from tidefast.datasets.bundled import bundled
from tidefast.datasets.bundled_1k import photos
from tidefast.datasets.cifar10 import cifar10, is_cifar10
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.folder import ImageFolder, folder
from tidefast.datasets.imageset import ImageSet
from tidefast.datasets.parts import part_of
from tidefast.datasets.subset import Subset


class NamedSet(NamedTuple):
    """A set of images that comes with the package."""

    summary: str
    read: Callable[[], ImageSet]


NAMED = {
    "bundled": NamedSet("3,000 test images of CIFAR-10, 32 pixels, ten classes", bundled),
    "bundled-train": NamedSet("2,000 training images of CIFAR-10, likewise", functools.partial(bundled, "train")),
    "bundled-1k": NamedSet("1,000 photos with labels of ImageNet, 128 pixels, a thousand classes", photos),
}

_KINDS = (
    '"bundled", "bundled-train", "bundled-1k", a folder of class folders with image files, a folder of CIFAR-10, '
    "or a file .npz with the arrays images (uint8 [N, H, W, 3]) and labels [N]"
)


def open_images(
    spec: str | os.PathLike[str], *, part: str = "all", resize: int | None = 256, crop: int = 224
) -> ImageSet | ImageFolder | Subset:
    """The images that `spec` names: one of the bundled sets, a folder of classes or of CIFAR-10, or a file .npz.

    `part`: "stream" or "held", which have no image in common (see `part_of`). `resize` and `crop` are for image files
    (see `folder`), which are read when they are asked for. Of CIFAR-10 it is the test split. Options may stand in the
    name.

    >>> len(open_images("bundled")), len(open_images("bundled:part=held"))
    (3000, 600)
    >>> open_images("nowhere")
    Traceback (most recent call last):
    ...
    tidefast.datasets.errors.DatasetError: no images at 'nowhere': there is no such file or folder; expected ...
    """
    given = Specification(os.fspath(spec)) if Path(spec).exists() else Specification.parse(os.fspath(spec))
    options = {"part": part, "resize": resize, "crop": crop, **given.options}
    unknown = given.options.keys() - {"part", "resize", "crop"}
    if unknown:
        raise DatasetError(f"images have no option {', '.join(sorted(unknown))}; their options: part, resize, crop")
    return part_of(_whole(given.name, options["resize"], options["crop"]), options["part"])


def _whole(name: str, resize: int | None, crop: int) -> ImageSet | ImageFolder:
    if name in NAMED:
        return NAMED[name].read()
    path = Path(name)
    if path.is_dir():
        return cifar10(path) if is_cifar10(path) else folder(path, resize=resize, crop=crop, verify=False)
    if path.is_file() and path.suffix == ".npz":
        return _from_arrays(path)
    wrong = "it is a file of another kind" if path.is_file() else "there is no such file or folder"
    raise DatasetError(f"no images at {name!r}: {wrong}; expected {_KINDS}")


def _from_arrays(path: Path) -> ImageSet:
    try:
        with np.load(path, allow_pickle=False) as stored:
            images, labels = stored["images"], stored["labels"]
            count = int(labels.max()) + 1 if labels.size else 0
            classes = stored["classes"] if "classes" in stored else np.arange(count)
            return ImageSet(images, labels.astype(np.int64, casting="same_kind"), tuple(map(str, classes)))
    except KeyError as error:
        raise DatasetError(f"{path} lacks an array: {error.args[0]}; expected images and labels") from None
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} holds no images that can be used: {error}") from None
