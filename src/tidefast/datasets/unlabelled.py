"""Images without labels, from wherever they are: a folder, an array on disk, or a set with labels nobody asks for."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tidefast.core.specification import Specification
from tidefast.core.validation import require_count
from tidefast.datasets.cifar10 import is_cifar10
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.folder import SUFFIXES, image_names, shorter_side
from tidefast.datasets.imageset import Pixels
from tidefast.datasets.opening import open_images
from tidefast.datasets.picture import read_rgb
from tidefast.datasets.tensors import as_tensor

_ARRAYS = "uint8 [N, H, W, 3], or float32 [N, 3, H, W] in [0, 1]"


def open_unlabelled(spec: str | os.PathLike[str], most: int = 512) -> Tensor:
    """At most so many images [n, 3, H, W] in [0, 1], spread evenly over what `spec` names, in an order that mixes them.

    `spec`: a folder of image files, at any depth (as they are; "folder:size=224" prepares them as `open_images` does);
    a file .npy; a file .npz with the array images; or a set as `open_images` takes it, such as "bundled:part=held".
    The order is always the same; it mixes what folders and sets hold sorted, so that any few of them are a fair batch.

    >>> open_unlabelled("bundled:part=held", 64).shape
    torch.Size([64, 3, 32, 32])
    >>> open_unlabelled("nowhere")
    Traceback (most recent call last):
    ...
    tidefast.datasets.errors.DatasetError: no images at 'nowhere': there is no such file or folder; expected ...
    """
    given = Specification(os.fspath(spec)) if Path(spec).exists() else Specification.parse(os.fspath(spec))
    path = Path(given.name)
    if path.is_dir() and not is_cifar10(path):
        return as_tensor(_from_files(path, most, **_preparation(given)))
    if path.is_file() and path.suffix in (".npy", ".npz"):
        return _from_array(path, most)
    data = open_images(spec)
    return as_tensor(data[_chosen(len(data), most)].images)


def _chosen(count: int, most: int) -> npt.NDArray[np.int64]:
    places = np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)
    return np.random.default_rng(0).permutation(places)


def _preparation(given: Specification) -> dict[str, Any]:
    if unknown := given.options.keys() - {"size", "resize", "crop"}:
        raise DatasetError(f"a folder of images has no option {', '.join(sorted(unknown))}; its options: size, resize")
    options = dict(given.options)
    if "size" in options:
        options["crop"] = options.pop("size")
        require_count("size", options["crop"])
        options.setdefault("resize", shorter_side(options["crop"]))
    return options


def _from_files(root: Path, most: int, resize: int | None = None, crop: int | None = None) -> Pixels:
    names = image_names(root, ".")
    if not names:
        raise DatasetError(f"no image files in {root}: expected some of {', '.join(sorted(SUFFIXES))}, at any depth")
    chosen = [names[place] for place in _chosen(len(names), most)]
    pictures = [read_rgb(root / name, resize=resize, crop=crop) for name in chosen]
    for name, picture in zip(chosen, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            raise DatasetError(
                f"the images in {root} have different sizes: {chosen[0]} is {_size(pictures[0])}, {name} is "
                f"{_size(picture)}; prepare them on the way, as in '{root}:size=224'"
            )
    return np.stack(pictures)


def _size(picture: Pixels) -> str:
    return f"{picture.shape[1]}x{picture.shape[0]}"


def _from_array(path: Path, most: int) -> Tensor:
    try:
        stored = np.load(path, allow_pickle=False)
        images = stored if isinstance(stored, np.ndarray) else stored["images"]
    except KeyError:
        raise DatasetError(f"{path} lacks the array images; expected {_ARRAYS}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} holds no images that can be used: {error}") from None
    levels = images.dtype == np.uint8
    if not (levels or images.dtype == np.float32) or images.ndim != 4 or images.shape[3 if levels else 1] != 3:
        raise DatasetError(f"{path} must hold {_ARRAYS}, got {images.dtype} {list(images.shape)}")
    if not len(images):
        raise DatasetError(f"{path} holds no images: its array is {list(images.shape)}")
    chosen = images[_chosen(len(images), most)]
    if levels:
        return as_tensor(chosen)
    if not ((chosen >= 0) & (chosen <= 1)).all():  # nan is neither
        raise DatasetError(f"{path} must hold float32 images in [0, 1], got {chosen.min():g} to {chosen.max():g}")
    return torch.from_numpy(np.ascontiguousarray(chosen))
