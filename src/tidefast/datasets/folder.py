"""Folders of image files, one for each class, as ImageNet-like data comes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from tidefast.core.validation import require_choice, require_count
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.imageset import ImageSet, Labels, Pixels
from tidefast.datasets.picture import read_rgb, require_pillow

SIDE = 224
"""Of the images that are made of files, in pixels, when nobody says."""
FILE = "classes.txt"
"""Beside the class folders, if any: the names of a model's classes, in the order of its outputs."""
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


class ImageFolder:
    """Labelled image files, read when they are asked for; an ImageSet that stays on disk.

    `names` are the files under `root`, with forward slashes; they, `labels` int64 [N] and `classes` are known at once;
    `folder[indices]` reads those images.
    """

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        labels: Labels,
        classes: tuple[str, ...],
        *,
        resize: int | None = 256,
        crop: int = 224,
    ) -> None:
        self.root = root
        self.names = tuple(names)
        self.labels = labels
        self.classes = classes
        self.resize = resize
        self.crop = crop

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the files are."""
        return tuple(self.root / name for name in self.names)

    def at(self, root: Path) -> ImageFolder:
        """The files of the same names elsewhere, as data sets hold them that store every image in several versions."""
        return ImageFolder(root, self.names, self.labels, self.classes, resize=self.resize, crop=self.crop)

    def relabelled(self, labels: Labels, classes: tuple[str, ...]) -> ImageFolder:
        """The same images under other labels."""
        return ImageFolder(self.root, self.names, labels, classes, resize=self.resize, crop=self.crop)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"ImageFolder({len(self)} images, {len(self.classes)} classes, {self.crop}x{self.crop})"

    def __getitem__(self, indices: slice | Sequence[int] | npt.NDArray[Any]) -> ImageSet:
        """The images at `indices`, in memory; a file that cannot be read is a DatasetError that names it."""
        chosen = np.arange(len(self))[indices]
        images = np.empty((len(chosen), self.crop, self.crop, 3), np.uint8)
        for image, index in zip(images, chosen, strict=True):
            image[:] = self._read(index)
        return ImageSet(images, self.labels[chosen], self.classes, chosen.astype(np.int64))

    def _read(self, index: int) -> Pixels:
        path = self.root / self.names[index]
        try:
            return read_rgb(path, resize=self.resize, crop=self.crop)
        except FileNotFoundError:
            raise DatasetError(f"{path} is missing: it was there when the folder was listed, or should be") from None


def folder(
    root: str | os.PathLike[str],
    *,
    resize: int | None = 256,
    crop: int = 224,
    classes: Sequence[str] | None = None,
    unreadable: str = "raise",
    verify: bool = True,
) -> ImageFolder:
    """Image files in `root/<class>/`, with subfolders; labels follow `classes`, or else the sorted folder names.

    A class folder may be empty. Where labels are to be those of a model with more classes, see `matched`.

    `resize` scales the shorter side (None leaves the size as it is), `crop` cuts that square out of the centre.
    `verify` decodes every file once, now; those that cannot be read are all named, in an error or, with
    `unreadable="skip"`, in a warning and left out. With `verify=False` a bad file is an error when it is asked for:
    by then, leaving it out would move every later image to another position.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("newt", "crow"):
    ...         Path(root, name).mkdir()
    ...         Image.new("RGB", (300, 400)).save(Path(root, name, "1.png"))
    ...     data = folder(root)
    ...     images, labels = data[[1]]
    >>> data.classes, images.shape, labels.tolist()
    (('crow', 'newt'), (1, 224, 224, 3), [1])
    """
    require_choice("unreadable", unreadable, ("raise", "skip"))
    require_count("crop", crop)
    if resize is not None:
        require_count("resize", resize, low=crop)
    if unreadable == "skip" and not verify:
        raise ValueError("unreadable='skip' needs verify=True: what is left out must be known from the start")
    require_pillow()
    root = Path(root)
    names = _class_names(root, classes)
    files_of = {name: image_names(root, name) for name in names}
    if not any(files_of.values()):
        raise DatasetError(
            f"no image files in the {len(names)} class folders of {root} ({', '.join(sorted(SUFFIXES))})"
        )
    files = [(file, label) for label, name in enumerate(names) for file in files_of[name]]
    if verify:
        files = _readable(root, files, names, unreadable, resize, crop)
    labels = np.array([label for _, label in files], np.int64)
    return ImageFolder(root, [file for file, _ in files], labels, names, resize=resize, crop=crop)


def shorter_side(size: int) -> int:
    """To which the shorter side of a picture is scaled before a square of that size is cut out of it, as is customary.

    >>> shorter_side(224), shorter_side(32)
    (256, 36)
    """
    return size * 8 // 7


def image_names(root: Path, subfolder: str) -> list[str]:
    """The image files of a subfolder and of the folders in it, as names under `root`, sorted folder by folder."""
    names = []
    for parent, _, files in os.walk(root / subfolder):
        place = Path(parent).relative_to(root).as_posix()
        names += [f"{place}/{file}" for file in files if PurePath(file).suffix.lower() in SUFFIXES]
    return sorted(names, key=lambda name: name.split("/"))


def _class_names(root: Path, expected: Sequence[str] | None) -> tuple[str, ...]:
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder: give the folder that holds one folder for each class")
    present = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not present:
        raise DatasetError(
            f"{root} holds no class folders: expected one folder for each class with its image files inside"
        )
    if expected is None:
        return tuple(present)
    if isinstance(expected, str) or len(set(expected)) != len(expected):
        raise ValueError(f"classes must be different names in a list, got {expected!r}")
    missing, surplus = sorted(set(expected) - set(present)), sorted(set(present) - set(expected))
    if missing or surplus:
        raise DatasetError(
            f"the class folders of {root} are not the {len(expected)} expected classes: "
            + "; ".join(
                f"{len(names)} {what} ({some(names)})"
                for what, names in (("missing", missing), ("not expected", surplus))
                if names
            )
            + "; give the folder of the whole dataset, or the classes= that it holds"
        )
    return tuple(expected)


def _readable(
    root: Path,
    files: list[tuple[str, int]],
    names: tuple[str, ...],
    unreadable: str,
    resize: int | None,
    crop: int,
) -> list[tuple[str, int]]:
    """The files that decode; what becomes of the others is the caller's choice."""
    good, bad = [], []
    for file, label in files:
        try:
            read_rgb(root / file, resize=resize, crop=crop)
        except (DatasetError, OSError) as error:
            bad.append(str(error))
        else:
            good.append((file, label))
    if not bad:
        return good
    report = f"{len(bad)} of {len(files)} image files cannot be used:\n  " + "\n  ".join(bad)
    if unreadable == "raise":
        raise DatasetError(f"{report}\nreplace them, or leave them out with unreadable='skip'")
    lost = sorted({label for _, label in files} - {label for _, label in good})
    if lost:
        raise DatasetError(f"{report}\nno image would be left in {some([names[label] for label in lost])}")
    warnings.warn(report, stacklevel=3)
    return good


def some(names: Sequence[str], limit: int = 5) -> str:
    """The first few of many names, for a message."""
    listed = ", ".join(map(repr, names[:limit]))
    return listed if len(names) <= limit else f"{listed} and {len(names) - limit} more"
