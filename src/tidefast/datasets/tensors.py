"""From image sets to what a network takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tidefast.datasets.imageset import ImageSet

SOURCE_IMAGES = 2000
"""How many clean images are source data enough, when nobody says."""


class LabelledImages(Protocol):
    """What a stream needs of its images; `ImageSet` and `ImageFolder` have it."""

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Labels [N]."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: npt.NDArray[Any], /) -> ImageSet: ...


SourceBatches: TypeAlias = list[tuple[Tensor, Tensor]]


def as_tensor(images: npt.NDArray[np.uint8]) -> Tensor:
    """Images uint8 [n, H, W, 3] as float32 [n, 3, H, W] in [0, 1].

    >>> as_tensor(np.full((2, 4, 5, 3), 255, np.uint8)).shape
    torch.Size([2, 3, 4, 5])
    """
    channels_first = torch.from_numpy(images).permute(0, 3, 1, 2)
    # Divided, not multiplied by 1/255: each level gives the float nearest to it.
    return channels_first.to(torch.float32, memory_format=torch.contiguous_format).div_(255)


def is_prepared(source: str | os.PathLike[str]) -> bool:
    """Whether it is a file of `tidefast.prepare`, and no images."""
    return Path(source).is_file() and Path(source).suffix == ".safetensors"


def source_batches(data: LabelledImages, images: int = SOURCE_IMAGES, batch: int = 64) -> SourceBatches:
    """At most so many clean images with their labels, spread evenly over the set; each batch, where it is sorted."""
    images = min(images, len(data))
    places = np.linspace(0, len(data) - 1, images).round().astype(np.int64)
    count = -(-images // batch)
    parts = np.split(places, range(batch, images, batch))
    if count > 1 and bool((np.diff(data.labels[places]) >= 0).all()):
        parts = [places[first::count] for first in range(count)]
    chosen = [data[part] for part in parts]
    return [(as_tensor(part.images), torch.as_tensor(part.labels, dtype=torch.int64)) for part in chosen]
