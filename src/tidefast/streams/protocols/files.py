"""Corrupted images that are stored, or made from clean ones: what the streams of ImageNet-C and CIFAR-C share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tidefast import corruptions
from tidefast.core.constraints import Count
from tidefast.datasets import DatasetError, LabelledImages, imagenet_c
from tidefast.streams.images import Data, labelled_images
from tidefast.streams.named import Recurring
from tidefast.streams.rendering import Rendering
from tidefast.streams.stored import Stored

FilePath: TypeAlias = str | os.PathLike[str]
IMAGENET_C_LAYOUT = (
    "root: ImageNet-C, laid out as root/<corruption>/<severity>/<class>/<image>.JPEG; or data: the validation images "
    "of ImageNet as folder/<class>/<image>.JPEG, which are corrupted on the way"
)


@dataclass(frozen=True)
class Files(Recurring, ABC):
    """Corruptions in turn, from stored files under `root`, or made from `data`."""

    root: FilePath | None = None

    @abstractmethod
    def stored(self, root: FilePath, names: tuple[str, ...], severity: int) -> Mapping[str, LabelledImages]:
        """The stored images of each corruption; place p of all of them is the same picture."""

    def source(self, data: Data | None) -> tuple[LabelledImages, Rendering | None]:
        if self.root is None:
            return self._clean(data), None
        if data is not None:
            raise ValueError(f"give root= (stored images) or data= (images to corrupt) to {self.name!r}, not both")
        if self.severity not in range(1, 6):
            raise ValueError(f"stored images have severity 1, 2, 3, 4 or 5, got {self.severity!r}")
        domains = self.domains()
        names = tuple(domain.corruptions[0][0] for domain in domains)
        sets = self.stored(self.root, names, int(self.severity))
        return sets[names[0]], Stored({domain: sets[name] for domain, name in zip(domains, names, strict=True)})

    def _clean(self, data: Data | None) -> LabelledImages:
        if data is None and self.needs:
            raise DatasetError(f"stream {self.name!r} was given no images; it needs {self.needs}")
        images = labelled_images(data)
        if set(images.classes) <= set(corruptions.names()):
            raise DatasetError(f"the classes of {images!r} are corruptions: give such a folder as root=, not as data")
        return images


@dataclass(frozen=True)
class ImageNetC(Files):
    """Corruptions of ImageNet's validation images; `classes` is how many class folders `root` must have."""

    classes: Count | None = 1000

    def stored(self, root: FilePath, names: tuple[str, ...], severity: int) -> Mapping[str, LabelledImages]:
        return imagenet_c(root, names, severity, classes=self.classes)
