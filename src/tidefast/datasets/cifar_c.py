"""CIFAR-10-C and CIFAR-100-C as they are published: one array for each corruption, five severities in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidefast.core.validation import require_choice, require_count
from tidefast.datasets.cifar10 import CLASSES
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.imageset import ImageSet, Labels, Pixels

SEVERITIES = 5
_NAMES = {"CIFAR-10-C": CLASSES, "CIFAR-100-C": tuple(map(str, range(100)))}


class MappedImages:
    """Rows of an array file, read when they are asked for; an ImageSet that stays on disk.

    A copy that travels to another process takes the path along, not the images.
    """

    def __init__(self, path: Path, first: int, labels: Labels, classes: tuple[str, ...]) -> None:
        self.path, self.first, self.labels, self.classes = path, first, labels, classes
        self._rows: Pixels | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"MappedImages({self.path.name}, {len(self)} images from row {self.first})"

    def __getitem__(self, indices: slice | Sequence[int] | npt.NDArray[Any]) -> ImageSet:
        """The images at `indices`, in memory."""
        if self._rows is None:
            self._rows = mapped(self.path)
        chosen = np.arange(len(self))[indices]
        return ImageSet(np.array(self._rows[self.first + chosen]), self.labels[chosen], self.classes, chosen)


def cifar_c(
    root: str | os.PathLike[str], corruptions: tuple[str, ...], severity: int = 5, *, name: str = "CIFAR-10-C"
) -> dict[str, MappedImages]:
    """The images of each corruption at one severity, from `root/<corruption>.npy` and `root/labels.npy`.

    `root` may also be the folder around `name`, which is "CIFAR-10-C" or "CIFAR-100-C". Severity s is the s-th fifth
    of the rows.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     np.save(Path(root, "fog.npy"), np.zeros((10, 32, 32, 3), np.uint8))
    ...     np.save(Path(root, "labels.npy"), np.array([3, 8] * 5))
    ...     stored = cifar_c(root, ("fog",))
    ...     images, labels = stored["fog"][:]
    >>> stored["fog"], labels.tolist()
    (MappedImages(fog.npy, 2 images from row 8), [3, 8])
    """
    require_choice("name", name, tuple(_NAMES))
    require_count("severity", severity)
    if severity > SEVERITIES:
        raise ValueError(f"severity must be 1 to {SEVERITIES}, got {severity}")
    base = _base(Path(root), name, (*corruptions, "labels"))
    labels = _labels(base / "labels.npy", len(_NAMES[name]))
    for corruption in corruptions:
        rows = len(mapped(base / f"{corruption}.npy"))
        if rows != len(labels):
            raise DatasetError(f"{base / corruption}.npy holds {rows} images, labels.npy {len(labels)}: unpack again")
    each = len(labels) // SEVERITIES
    first = (severity - 1) * each
    return {
        corruption: MappedImages(base / f"{corruption}.npy", first, labels[first : first + each], _NAMES[name])
        for corruption in corruptions
    }


def mapped(path: Path) -> Pixels:
    """An array file of images uint8 [N, H, W, 3], mapped into memory; anything else is a DatasetError that names it."""
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DatasetError(f"{path} is missing, truncated or no array file: {error}") from None
    if rows.dtype != np.uint8 or rows.ndim != 4 or rows.shape[3] != 3:
        raise DatasetError(f"{path} holds {rows.dtype} {list(rows.shape)}, expected images uint8 [N, H, W, 3]")
    images: Pixels = rows
    return images


def _base(root: Path, name: str, wanted: tuple[str, ...]) -> Path:
    bases = (root, root / name)
    lacking = [[file for file in wanted if not (base / f"{file}.npy").is_file()] for base in bases]
    for base, missing in zip(bases, lacking, strict=True):
        if not missing:
            return base
    base, missing = min(zip(bases, lacking, strict=True), key=lambda pair: len(pair[1]))
    raise DatasetError(
        f"no complete {name} in {root}: looked there and in {root / name}; {base} lacks "
        f"{', '.join(f'{file}.npy' for file in missing[:4])}{' and more' if len(missing) > 4 else ''}; give the "
        "folder of the unpacked archive"
    )


def _labels(path: Path, classes: int) -> Labels:
    try:
        labels = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DatasetError(f"{path} is missing, truncated or no array file: {error}") from None
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or not len(labels) or len(labels) % SEVERITIES:
        raise DatasetError(
            f"{path} holds {labels.dtype} {list(labels.shape)}, expected whole numbers [N], five severities in a row"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise DatasetError(f"{path} holds labels {labels.min()}..{labels.max()}, expected 0..{classes - 1}")
    numbers: Labels = labels.astype(np.int64)
    return numbers
