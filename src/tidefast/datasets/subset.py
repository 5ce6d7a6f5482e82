"""Some of the images of a set, in an order of their own, without reading any."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tidefast.core.validation import require_count
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.imageset import ImageSet, Labels

Item = TypeVar("Item")


class LabelledSet(Protocol):
    """A set of which some images can be taken."""

    @property
    def labels(self) -> Labels: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    def __getitem__(self, indices: npt.NDArray[Any], /) -> ImageSet: ...


class Subset:
    """The images at `places` of another set, read from it when they are asked for.

    >>> whole = ImageSet(np.zeros((3, 8, 8, 3), np.uint8), np.array([0, 1, 1]), ("cat", "dog"))
    >>> part = Subset(whole, [2, 0])
    >>> part.labels.tolist(), part[np.array([1])].origins.tolist()
    ([1, 0], [0])
    """

    def __init__(self, whole: LabelledSet, places: Sequence[int] | Labels) -> None:
        self.whole = whole
        self.places = np.asarray(places, np.int64)
        self.labels: Labels = whole.labels[self.places]
        self.classes = whole.classes

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        return f"Subset({len(self)} of {self.whole!r})"

    def __getitem__(self, indices: slice | Sequence[int] | npt.NDArray[Any]) -> ImageSet:
        return self.whole[self.places[indices]].relabelled(self.labels[indices], self.classes)

    def relabelled(self, labels: Labels, classes: tuple[str, ...]) -> Subset:
        """The same images under other labels."""
        other = Subset(self.whole, self.places)
        other.labels, other.classes = labels, classes
        return other


def draw_subset(ids: Sequence[Item], images: int, seed: int = 1) -> list[Item]:
    """So many of `ids`, as the IN-C protocol draws them: shuffled, then sampled without replacement, by one generator.

    The result depends on the order of `ids`.

    >>> draw_subset(["a", "b", "c", "d", "e"], 3)
    ['a', 'b', 'd']
    """
    require_count("images", images)
    if images > len(ids):
        raise DatasetError(f"cannot draw {images} images from {len(ids)}: ask for fewer")
    generator = random.Random(seed)
    shuffled = list(ids)
    generator.shuffle(shuffled)
    return generator.sample(shuffled, images)


def read_ids(path: str | os.PathLike[str], sha256: str = "") -> list[str]:
    """The lines of a list of images such as `n03594734/ILSVRC2012_val_00024322.JPEG`, checked against `sha256`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Path(root, "ids.txt").write_text("n01/1.JPEG\\nn02/2.JPEG\\n")
    ...     read_ids(Path(root, "ids.txt"))
    ['n01/1.JPEG', 'n02/2.JPEG']
    """
    try:
        ids = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(
            f"cannot read the list of images {path} ({error}): give a text file with one class/name on each line"
        ) from None
    if sha256 and digest(ids) != sha256:
        raise DatasetError(
            f"{path} is not the published list: its {len(ids)} lines have SHA-256 {digest(ids)}, expected {sha256}"
        )
    return ids


def digest(ids: Sequence[str]) -> str:
    """SHA-256 of the lines joined by newlines, in hexadecimal.

    >>> digest(["n01/1.JPEG"])[:8]
    '37f7822f'
    """
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()


def places_of(ids: Sequence[str], names: Sequence[str]) -> list[int]:
    """Where each of `ids` stands among `names`; those that are missing are an error that names them.

    >>> places_of(["n02/2.JPEG"], ["n01/1.JPEG", "n02/2.JPEG"])
    [1]
    """
    place = {name: i for i, name in enumerate(names)}
    missing = [name for name in ids if name not in place]
    if missing:
        raise DatasetError(
            f"{len(missing)} of the {len(ids)} images that were chosen are not in the folder, the first {missing[0]}: "
            "give the folder of the whole data set"
        )
    return [place[name] for name in ids]
