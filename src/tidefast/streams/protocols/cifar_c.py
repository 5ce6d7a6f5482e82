"""CIFAR10-C and CIFAR100-C: groups of corruptions of even difficulty, visited again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidefast.core.constraints import Count
from tidefast.core.validation import require_choice
from tidefast.datasets import LabelledImages, cifar_c
from tidefast.streams.named import registry
from tidefast.streams.protocols.files import FilePath, Files

_NEEDS = (
    "root: {name} with root/<corruption>.npy and root/labels.npy, or the folder around it; or data: the test images "
    "of CIFAR, which are corrupted on the way"
)


@dataclass(frozen=True)
class CifarC(Files):
    """A group of corruptions at severity 5 in turn: "easy", "medium", "hard", or those in `corruptions`."""

    corruptions: tuple[str, ...] = ()
    group: str = "easy"

    groups: ClassVar[Mapping[str, tuple[str, ...]]]
    dataset: ClassVar[str]
    default_batch: ClassVar[int] = 200
    default_visits: ClassVar[int] = 1000

    def __post_init__(self) -> None:
        require_choice("group", self.group, self.groups)
        super().__post_init__()

    def chosen(self) -> tuple[str, ...]:
        return tuple(self.corruptions) or self.groups[self.group]

    def stored(self, root: FilePath, names: tuple[str, ...], severity: int) -> Mapping[str, LabelledImages]:
        return cifar_c(root, names, severity, name=self.dataset)


@registry.register("cifar10-c")
@dataclass(frozen=True)
class Cifar10C(CifarC):
    """CIFAR10-C groups: the corruptions of one group at severity 5 in turn, 1000 visits, batches of 200."""

    dataset: ClassVar[str] = "CIFAR-10-C"
    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "easy": ("motion_blur", "snow", "fog", "elastic_transform", "jpeg_compression"),
        "medium": ("defocus_blur", "glass_blur", "zoom_blur", "frost", "contrast", "pixelate"),
        "hard": ("gaussian_noise", "shot_noise", "impulse_noise"),
    }
    needs: ClassVar[str] = _NEEDS.format(name="CIFAR-10-C")


@registry.register("cifar10-c-mini")
@dataclass(frozen=True)
class Cifar10CMini(Cifar10C):
    """CIFAR10-C groups on the bundled images: 20 visits to 1000 of them.

    >>> from tidefast.streams import make
    >>> stream = make("cifar10-c-mini", group="hard", visits=2)
    >>> stream
    Stream('cifar10-c-mini', 30 steps of 200, 3000 images, seed 0)
    """

    images: Count | None = 1000

    default_visits: ClassVar[int] = 20
    needs: ClassVar[str] = ""


@registry.register("cifar100-c")
@dataclass(frozen=True)
class Cifar100C(CifarC):
    """CIFAR100-C groups: the corruptions of one group at severity 5 in turn, 1000 visits, batches of 200."""

    dataset: ClassVar[str] = "CIFAR-100-C"
    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "easy": (
            "impulse_noise",
            "defocus_blur",
            "motion_blur",
            "zoom_blur",
            "snow",
            "brightness",
            "elastic_transform",
        ),
        "medium": ("glass_blur", "frost", "fog", "contrast", "jpeg_compression"),
        "hard": ("gaussian_noise", "shot_noise", "pixelate"),
    }
    needs: ClassVar[str] = _NEEDS.format(name="CIFAR-100-C")


@registry.register("cifar100-c-mini")
@dataclass(frozen=True)
class Cifar100CMini(Cifar100C):
    """CIFAR100-C groups on the bundled images, which have ten classes: 20 visits to 1000 of them."""

    images: Count | None = 1000

    default_visits: ClassVar[int] = 20
    needs: ClassVar[str] = ""
