"""IN-C recurring: four corruptions of 5000 images, visited again and again."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tidefast.core.constraints import Count
from tidefast.datasets import DatasetError, LabelledImages, Subset, draw_subset, read_ids
from tidefast.datasets.subset import digest, places_of
from tidefast.streams.images import Data
from tidefast.streams.named import registry
from tidefast.streams.order import AsGiven, Order
from tidefast.streams.protocols.files import IMAGENET_C_LAYOUT, FilePath, ImageNetC
from tidefast.streams.rendering import Rendering
from tidefast.streams.stored import Stored

SubsetName = Literal["random", "robustbench"]
SHA256_OF_ALL = "5896a18050258f157d075e28493e740f844e9da35a06a06cb8a74bdc86106363"
SHA256_OF_ROBUSTBENCH = "d4121626d07722a0126c35b1563042e46a546f1a05ce705f2cdc635896d58574"
SHA256_OF_RANDOM = "83a5afc72d1ea1a517e3b02887e1e0ecc1e0e1f06df125c916fde3ed48692ce4"
RANDOM_IMAGES = 5000
SUBSET_LAYOUT = (
    f"{IMAGENET_C_LAYOUT}; and for the published choice of images ids: a text file of <class>/<image>.JPEG lines, "
    "which is imagenet_val_ids_50k.txt of YonseiML/asr for subset='random' or imagenet_test_image_ids.txt of "
    "RobustBench for subset='robustbench'"
)


@dataclass(frozen=True)
class ImageNetCSubset(ImageNetC):
    """Corruptions of `images` of ImageNet's validation images.

    `subset` "random" shuffles and samples the list of all images in the file `ids`, as the paper's code does, or the
    sorted names when there is no such file, which gives other images; "robustbench" takes the images that `ids` lists.
    Lists are checked against the published hashes.
    """

    images: Count | None = RANDOM_IMAGES
    ids: FilePath | None = None
    subset: SubsetName = "random"

    needs: ClassVar[str] = SUBSET_LAYOUT

    def __post_init__(self) -> None:
        super().__post_init__()

    def source(self, data: Data | None) -> tuple[LabelledImages, Rendering | None]:
        images, rendering = super().source(data)
        places = self._places(getattr(images, "names", None), len(images))
        if isinstance(rendering, Stored):
            rendering = Stored({domain: Subset(whole, places) for domain, whole in rendering.sets.items()})
        return Subset(images, places), rendering

    def images_per_domain(self, size: int) -> int:
        return size

    def label_order(self) -> Order | None:
        return AsGiven()  # the draw of the subset is its order

    def _count(self, available: int) -> int:
        return available if self.images is None else min(self.images, available)

    def _places(self, names: Sequence[str] | None, size: int) -> Sequence[int]:
        if names is None:
            if self.ids is not None:
                raise ValueError(
                    "ids= chooses images by their names, and these have none: give a folder of image files"
                )
            return draw_subset(range(size), self._count(size))
        if self.subset == "robustbench":
            if self.ids is None:
                raise DatasetError(
                    "subset='robustbench' needs its list of images: give the file as ids=, or subset='random'"
                )
            listed = read_ids(self.ids, SHA256_OF_ROBUSTBENCH)
            return places_of(listed[: self._count(len(listed))], names)
        if self.ids is None:
            warnings.warn(
                f"stream {self.name!r} draws its images from the sorted names: they are not those of the published "
                "subset, which needs the list of all images as ids=",
                stacklevel=5,
            )
            return draw_subset(range(size), self._count(size))
        listed = read_ids(self.ids, SHA256_OF_ALL)
        drawn = draw_subset(listed, self._count(len(listed)))
        if len(drawn) == RANDOM_IMAGES and digest(drawn) != SHA256_OF_RANDOM:
            raise DatasetError(
                f"the images drawn from {self.ids} are not the published ones: has Python's draw changed?"
            )
        return places_of(drawn, names)


@registry.register("in-c-recurring")
@dataclass(frozen=True)
class InCRecurring(ImageNetCSubset):
    """IN-C recurring: 4 corruptions at severity 5 in turn, 20 visits, the same 5000 images in each.

    They are gaussian, shot and impulse noise and contrast. See `ImageNetCSubset` for which images.
    """


@registry.register("in-c-recurring-mini")
@dataclass(frozen=True)
class InCRecurringMini(InCRecurring):
    """IN-C recurring with 500 of the bundled images.

    >>> from tidefast.streams import make
    >>> stream = make("in-c-recurring-mini")
    >>> len(stream), str(stream[8].domain), bool((stream[0].images == stream[32].images).all())
    (640, 'shot_noise 5', True)
    """

    images: Count | None = 500

    needs: ClassVar[str] = ""
