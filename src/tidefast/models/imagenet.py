"""The ImageNet networks of the published benchmarks, from torchvision (extra `vision`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from tidefast.errors import how_to_install
from tidefast.models.base import ModelEntry, registry
from tidefast.models.pixels import PixelNormalization
from tidefast.models.selection import select_classes

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Torchvision(ModelEntry):
    """A torchvision network with its first ImageNet weights; it takes images in [0, 1] and normalises them itself.

    `weights`: a file with its state dict; left out, torchvision's own IMAGENET1K_V1, from its cache or its server.
    `classes`: "d109" keeps the logits of the 109 classes of IN-D109, in the order of its labels.
    """

    weights: str | None = None
    classes: str | None = None

    architecture: ClassVar[str]

    def __post_init__(self) -> None:
        if self.classes not in (None, "d109"):
            raise ValueError(f"classes must be 'd109' or left out, got {self.classes!r}")

    def build(self) -> nn.Module:
        return self._wrapped(_models().get_model(self.architecture, weights=None))

    def load(self) -> nn.Module:
        if self.weights is None:
            return self._wrapped(_models().get_model(self.architecture, weights="IMAGENET1K_V1")).eval()
        path = Path(self.weights)
        if not path.is_file():
            raise FileNotFoundError(f"no weights at {str(path)!r}: expected a state dict of {self.architecture}")
        network = _models().get_model(self.architecture, weights=None)
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        return self._wrapped(network).eval()

    def _wrapped(self, network: nn.Module) -> nn.Module:
        whole = nn.Sequential(PixelNormalization(MEAN, DEVIATION), network)
        if self.classes is None:
            return whole
        from tidefast.datasets import D109_INDICES

        return select_classes(whole, D109_INDICES)


@registry.register("resnet50")
class ResNet50(Torchvision):
    """ResNet-50 with BatchNorm, trained on ImageNet: the network of the published tables."""

    architecture = "resnet50"


@registry.register("vit_b_16", "vit-b-16")
class ViTB16(Torchvision):
    """ViT-B/16 with LayerNorm, trained on ImageNet."""

    architecture = "vit_b_16"


def _models() -> Any:
    try:
        import torchvision.models
    except ImportError as error:
        raise ImportError(f"this network comes from torchvision: {how_to_install('vision')}") from error
    return torchvision.models
