"""EfficientNet-Lite0: inverted residuals with BatchNorm and ReLU6, a thousand classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tidefast.models.pixels import PixelNormalization

LAYOUT = torch.channels_last
"""Of weights and activations in memory; no number depends on it, only time."""


class Stage(NamedTuple):
    """Blocks of one width; the first of them changes resolution and width."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    width: int


STAGES = (
    Stage(blocks=1, kernel=3, stride=1, expansion=1, width=16),
    Stage(blocks=2, kernel=3, stride=2, expansion=6, width=24),
    Stage(blocks=2, kernel=5, stride=2, expansion=6, width=40),
    Stage(blocks=3, kernel=3, stride=2, expansion=6, width=80),
    Stage(blocks=3, kernel=5, stride=1, expansion=6, width=112),
    Stage(blocks=4, kernel=5, stride=2, expansion=6, width=192),
    Stage(blocks=1, kernel=3, stride=1, expansion=6, width=320),
)
_STEM, _FEATURES = 32, 1280


class ConvNorm(nn.Sequential):
    """A convolution and its BatchNorm; where it strides, the odd row and column of padding are the last ones.

    So TensorFlow pads, where the weights were trained, as long as the sides of the images are even.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        side = (kernel - 1) // 2
        before = (side - 1, side) if stride == 2 else (0, 0)
        super().__init__(
            nn.ZeroPad2d(before * 2) if stride == 2 else nn.Identity(),
            nn.Conv2d(inputs, outputs, kernel, stride, 0 if stride == 2 else side, groups=groups, bias=False),
            nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01),
        )


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, narrow; beside a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand = ConvNorm(inputs, hidden) if expansion > 1 else None
        self.depthwise = ConvNorm(hidden, hidden, kernel, stride, groups=hidden)
        self.project = ConvNorm(hidden, outputs)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs if self.expand is None else functional.relu6(self.expand(inputs))
        outputs: Tensor = self.project(functional.relu6(self.depthwise(hidden)))
        return outputs + inputs if self.shortcut else outputs


class EfficientNetLite0(nn.Module):
    """Images in [0, 1], [N, 3, H, W] with sides that 32 divides, to logits [N, num_classes].

    >>> EfficientNetLite0(num_classes=7).eval()(torch.rand(1, 3, 32, 32)).shape
    torch.Size([1, 7])
    """

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        # (255 x - 127) / 128
        self.pixels = PixelNormalization(mean=(127 / 255,) * 3, deviation=(128 / 255,) * 3)
        self.stem = ConvNorm(3, _STEM, kernel=3, stride=2)
        blocks, inputs = [], _STEM
        for stage in STAGES:
            for number in range(stage.blocks):
                stride = stage.stride if number == 0 else 1
                blocks.append(InvertedResidual(inputs, stage.width, stage.kernel, stride, stage.expansion))
                inputs = stage.width
        self.blocks = nn.Sequential(*blocks)
        self.features = ConvNorm(inputs, _FEATURES)
        self.head = nn.Linear(_FEATURES, num_classes)
        self.to(memory_format=LAYOUT)  # type: ignore[call-overload]  # unknown to the stubs of torch

    def forward(self, images: Tensor) -> Tensor:
        pixels = self.pixels(images).contiguous(memory_format=LAYOUT)
        hidden = self.blocks(functional.relu6(self.stem(pixels)))
        features: Tensor = functional.relu6(self.features(hidden)).mean(dim=(2, 3))
        logits: Tensor = self.head(features)
        return logits
