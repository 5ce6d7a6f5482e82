"""A small residual network with BatchNorm, for 32x32 images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from tidefast.models.pixels import PixelNormalization


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, each with BatchNorm, beside a shortcut.

    Where the resolution falls, the shortcut averages before it projects, so that no pixel is dropped.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut.append(nn.AvgPool2d(stride))
        if inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(self.norm1(self.conv1(inputs)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))


class SmallResNet(nn.Module):
    """Images in [0, 1], [N, 3, 32, 32], to logits [N, num_classes].

    Every stage halves the resolution. Most of the width sits in the late stages, where a channel is cheap.

    >>> SmallResNet(widths=(8, 8, 8, 8), blocks=(1, 1, 1)).eval()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int = 10,
        widths: Sequence[int] = (16, 32, 64, 128),
        blocks: Sequence[int] = (1, 2, 2),
    ) -> None:
        super().__init__()
        self.pixels = PixelNormalization()
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    *(ResidualBlock(inputs if i == 0 else outputs, outputs, 2 if i == 0 else 1) for i in range(count))
                )
                for (inputs, outputs), count in zip(pairwise(widths), blocks, strict=True)
            )
        )
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        # The layout that the CPU kernels like best; it carries through to the last block.
        pixels = self.pixels(images).contiguous(memory_format=torch.channels_last)
        hidden = functional.relu(self.norm(self.stem(pixels)))
        features: Tensor = self.stages(hidden).mean(dim=(2, 3))
        logits: Tensor = self.head(features)
        return logits
