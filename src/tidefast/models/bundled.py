"""The trained networks that come with the package; docs/bundled.md is their model card."""

from __future__ import annotations

from importlib import resources
from typing import ClassVar

import safetensors.torch
from torch import nn

from tidefast.core.bundle import bundled_1k
from tidefast.models.base import ModelEntry, registry
from tidefast.models.efficientnet import EfficientNetLite0
from tidefast.models.resnet import SmallResNet
from tidefast.models.vit import SmallViT


class Bundled(ModelEntry):
    """A network whose weights are a file in this package."""

    file: ClassVar[str]

    def content(self) -> bytes:
        """Of the file."""
        return resources.files("tidefast.models").joinpath(self.file).read_bytes()

    def load(self) -> nn.Module:
        network = self.build()
        stored = safetensors.torch.load(self.content())
        # Stored in half precision, computed in single.
        wide = {key: value.float() if value.is_floating_point() else value for key, value in stored.items()}
        network.load_state_dict(wide)
        return network.eval()


@registry.register("bundled-resnet")
class BundledResNet(Bundled):
    """A residual network with BatchNorm, trained on CIFAR-10."""

    file = "bundled_resnet.safetensors"

    def build(self) -> nn.Module:
        return SmallResNet(widths=(16, 32, 56, 128), blocks=(1, 2, 1))


@registry.register("bundled-vit")
class BundledViT(Bundled):
    """A vision transformer with LayerNorm only, trained on CIFAR-10."""

    file = "bundled_vit.safetensors"

    def build(self) -> nn.Module:
        return SmallViT(stem=32, widths=(64, 128), depths=(1, 3), heads=(2, 4))


@registry.register("bundled-lite0")
class BundledLite0(Bundled):
    """EfficientNet-Lite0 with BatchNorm, trained on ImageNet: a thousand classes."""

    file = "lite0.safetensors"

    def content(self) -> bytes:
        return bundled_1k(self.file)

    def build(self) -> nn.Module:
        return EfficientNetLite0()
