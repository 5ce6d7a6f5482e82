"""Labelled images held in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Pixels: TypeAlias = npt.NDArray[np.uint8]
Labels: TypeAlias = npt.NDArray[np.int64]


class ModelClasses(tuple[str, ...]):
    """Class names in the order of a model's outputs: the labels of images that have them are the model's own."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images uint8 [N, H, W, 3], labels int64 [N], class names; unpacks into images and labels.

    `origins` are the positions of the images in the dataset that they were taken from.

    >>> whole = ImageSet(np.zeros((3, 32, 32, 3), np.uint8), np.array([0, 1, 1]), ("cat", "dog"))
    >>> images, labels = whole
    >>> part = whole[[2, 0]]
    >>> len(part), part.labels.tolist(), part.origins.tolist()
    (2, [1, 0], [2, 0])
    """

    images: Pixels = field(repr=False)
    labels: Labels = field(repr=False)
    classes: tuple[str, ...]
    origins: Labels = field(repr=False, default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[3] != 3:
            raise TypeError(f"images must be uint8 [N, H, W, 3], got {self.images.dtype} {list(self.images.shape)}")
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != np.int64:
            raise TypeError(
                f"labels must be int64 [{len(self.images)}], one for each image, "
                f"got {self.labels.dtype} {list(self.labels.shape)}"
            )
        if len(self.labels) and not (self.labels.min() >= 0 and self.labels.max() < len(self.classes)):
            raise ValueError(
                f"labels must lie in 0..{len(self.classes) - 1} ({len(self.classes)} classes), "
                f"got {self.labels.min()}..{self.labels.max()}"
            )
        if self.origins.size == 0:
            object.__setattr__(self, "origins", np.arange(len(self.labels), dtype=np.int64))
        if self.origins.shape != self.labels.shape:
            raise TypeError(f"origins must be [{len(self.labels)}], one for each image, got {list(self.origins.shape)}")

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return iter((self.images, self.labels))

    def __getitem__(self, indices: slice | Sequence[int] | npt.NDArray[Any]) -> ImageSet:
        """The images at `indices`, as a set of its own."""
        return ImageSet(self.images[indices], self.labels[indices], self.classes, self.origins[indices])

    def relabelled(self, labels: Labels, classes: tuple[str, ...]) -> ImageSet:
        """The same images under other labels."""
        return ImageSet(self.images, labels, classes, self.origins)
