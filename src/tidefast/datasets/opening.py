"""Image sets by one word: a name or a path."""

from __future__ import annotations

import functools
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from tidefast.core.specification import Specification
from tidefast.core.validation import require_count
from tidefast.datasets.bundled import bundled
from tidefast.datasets.bundled_1k import photos
from tidefast.datasets.cifar10 import cifar10, is_cifar10
from tidefast.datasets.classes import ClassesGiven, matched, read_classes
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.folder import FILE, SIDE, ImageFolder, folder, shorter_side
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


Resize: TypeAlias = int | Literal["auto"] | None
_OPTIONS = ("part", "size", "resize", "crop", "classes")


def open_images(
    spec: str | os.PathLike[str],
    *,
    part: str = "all",
    size: int | None = None,
    resize: Resize = "auto",
    crop: int | None = None,
    classes: ClassesGiven | None = None,
) -> ImageSet | ImageFolder | Subset:
    """The images that `spec` names: one of the bundled sets, a folder of classes or of CIFAR-10, or a file .npz.

    part: "stream" or "held", which have no image in common (see `part_of`).
    size: of the square that is cut out of the centre of image files (224 when nobody says), whose shorter side is made
        `resize` long first ("auto": 8/7 of the size; None: as it is); `crop` is another word for it. Files are read
        when they are asked for.
    classes: those of the model that the images are for, when it has more of them (see `matched`); a file classes.txt
        beside the class folders says it too.

    Of CIFAR-10 it is the test split. Options may stand in the name.

    >>> len(open_images("bundled")), len(open_images("bundled:part=held"))
    (3000, 600)
    >>> open_images("nowhere")
    Traceback (most recent call last):
    ...
    tidefast.datasets.errors.DatasetError: no images at 'nowhere': there is no such file or folder; expected ...
    """
    given = Specification(os.fspath(spec)) if Path(spec).exists() else Specification.parse(os.fspath(spec))
    asked: dict[str, Any] = dict(zip(_OPTIONS, (part, size, resize, crop, classes), strict=True))
    unknown = given.options.keys() - asked.keys()
    if unknown:
        raise DatasetError(f"images have no option {', '.join(sorted(unknown))}; their options: {', '.join(_OPTIONS)}")
    asked |= given.options
    data = _whole(given.name, asked["size"], asked["resize"], asked["crop"])
    return part_of(_with_labels(data, Path(given.name), asked["classes"]), asked["part"])


def _with_labels(data: ImageSet | ImageFolder, path: Path, classes: ClassesGiven | None) -> ImageSet | ImageFolder:
    if isinstance(data, ImageFolder) and (classes is None or isinstance(classes, int)) and (path / FILE).is_file():
        listed = read_classes(path / FILE)
        if classes is not None and len(listed) != classes:
            raise DatasetError(f"{path / FILE} names {len(listed)} classes, the model has {classes}")
        return matched(data, listed)
    return data if classes is None else matched(data, classes)


def _whole(name: str, size: int | None, resize: Resize, crop: int | None) -> ImageSet | ImageFolder:
    if None not in (size, crop) and size != crop:
        raise ValueError(f"size={size} and crop={crop} are two words for the same: give one of them")
    side = crop if size is None else size
    path = Path(name)
    if path.is_dir() and name not in NAMED and not is_cifar10(path):
        return _folder(path, side, resize)
    data = _in_memory(name, path)
    height, width = data.images.shape[1:3]
    if resize != "auto" or side not in (None, height) or side not in (None, width):
        raise DatasetError(f"the images of {name} are {width}x{height} and stay so: size= and resize= are for files")
    return data


def _folder(path: Path, side: int | None, resize: Resize) -> ImageFolder:
    if side is None:
        side = min(SIDE, resize) if isinstance(resize, int) else SIDE
    require_count("size", side)
    return folder(path, resize=shorter_side(side) if resize == "auto" else resize, crop=side, verify=False)


def _in_memory(name: str, path: Path) -> ImageSet:
    if name in NAMED:
        return NAMED[name].read()
    if path.is_dir():
        return cifar10(path)
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
