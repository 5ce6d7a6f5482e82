"""Image sets by one word: a name or a path."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from tidefast.datasets.bundled import bundled
from tidefast.datasets.cifar10 import cifar10, is_cifar10
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.folder import ImageFolder, folder
from tidefast.datasets.imageset import ImageSet

_KINDS = (
    '"bundled", "bundled-train", a folder of class folders with image files, a folder of CIFAR-10, or a file .npz '
    "with the arrays images (uint8 [N, H, W, 3]) and labels [N]"
)


def open_images(spec: str | os.PathLike[str], *, resize: int | None = 256, crop: int = 224) -> ImageSet | ImageFolder:
    """The images that `spec` names: "bundled", "bundled-train", a folder of classes or of CIFAR-10, or a file .npz.

    `resize` and `crop` are for image files (see `folder`), which are read when they are asked for. Of CIFAR-10 it is
    the test split.

    >>> len(open_images("bundled"))
    3000
    >>> open_images("nowhere")
    Traceback (most recent call last):
    ...
    tidefast.datasets.errors.DatasetError: no images at 'nowhere': there is no such file or folder; expected ...
    """
    if spec in ("bundled", "bundled-train"):
        return bundled("test" if spec == "bundled" else "train")
    path = Path(spec)
    if path.is_dir():
        return cifar10(path) if is_cifar10(path) else folder(path, resize=resize, crop=crop, verify=False)
    if path.is_file() and path.suffix == ".npz":
        return _from_arrays(path)
    wrong = "it is a file of another kind" if path.is_file() else "there is no such file or folder"
    raise DatasetError(f"no images at {str(spec)!r}: {wrong}; expected {_KINDS}")


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
