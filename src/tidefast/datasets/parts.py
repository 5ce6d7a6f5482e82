"""Two parts of a set of images that have none in common, for studies where one must never see the other."""

from __future__ import annotations

from typing import Literal, TypeVar, get_args, overload

import numpy as np

from tidefast.core.validation import require_choice
from tidefast.datasets.imageset import ImageSet
from tidefast.datasets.subset import LabelledSet, Subset

PartName = Literal["all", "stream", "held"]
PARTS: tuple[PartName, ...] = get_args(PartName)
Images = TypeVar("Images", bound=LabelledSet)

_EVERY = 5  # one image of so many is held back


@overload
def part_of(data: ImageSet, part: str) -> ImageSet: ...
@overload
def part_of(data: Images, part: str) -> Images | Subset: ...
def part_of(data: LabelledSet, part: str) -> LabelledSet:
    """All images, the four fifths for a stream, or the fifth that is held back from it (canaries, source data).

    Every fifth image is held back after a stable sort by label, so that each class has its share in both parts as
    nearly as it can, and the parts depend on nothing but the set. Both keep the order of the set.

    >>> from tidefast.datasets import bundled
    >>> held, stream = part_of(bundled(), "held"), part_of(bundled(), "stream")
    >>> len(held), len(stream), np.bincount(held.labels).tolist() == [60] * 10
    (600, 2400, True)
    """
    require_choice("part", part, PARTS)
    if part == "all":
        return data
    by_label = np.argsort(data.labels, kind="stable")
    held = np.zeros(len(by_label), bool)
    held[by_label[_EVERY // 2 :: _EVERY]] = True
    places = np.flatnonzero(held if part == "held" else ~held)
    return data[places] if isinstance(data, ImageSet) else Subset(data, places)
