"""A small vision transformer with LayerNorm only, for 32x32 images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tidefast.models.pixels import PixelNormalization


class Attention(nn.Module):
    """Multi-head self-attention over tokens [N, T, C]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        n, t, c = tokens.shape
        query, key, value = self.qkv(tokens).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        # Written out: for 64 tokens or fewer this is faster on a CPU than the fused kernel, above all in bfloat16.
        weights = torch.softmax(query @ key.transpose(-2, -1) * (c // self.heads) ** -0.5, dim=-1)
        out: Tensor = self.out((weights @ value).transpose(1, 2).reshape(n, t, c))
        return out


class LocalPerceptron(nn.Module):
    """Two linear layers with a depthwise 3x3 convolution between them, which tells neighbours from strangers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.local = nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden)
        self.project = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor, side: int) -> Tensor:
        hidden = self.expand(tokens)
        grid = hidden.transpose(1, 2).unflatten(2, (side, side))
        hidden = functional.gelu(hidden + self.local(grid).flatten(2).transpose(1, 2))
        out: Tensor = self.project(hidden)
        return out


class Block(nn.Module):
    """Pre-norm transformer block: attention, then the perceptron."""

    def __init__(self, width: int, heads: int, expansion: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = LocalPerceptron(width, expansion * width)

    def forward(self, tokens: Tensor, side: int) -> Tensor:
        tokens = tokens + self.attention(self.norm1(tokens))
        mixed: Tensor = tokens + self.perceptron(self.norm2(tokens), side)
        return mixed


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of [N, C, H, W]."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _convolution(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, stride, 1), ChannelNorm(outputs), nn.GELU()


class SmallViT(nn.Module):
    """Images in [0, 1], [N, 3, 32, 32], to logits [N, num_classes].

    A convolutional stem makes 8x8 tokens; after the first blocks a strided convolution merges them to 4x4 wider ones.

    >>> SmallViT(stem=8, widths=(16, 16), depths=(1, 1), heads=(2, 2)).eval()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int = 10,
        stem: int = 32,
        widths: Sequence[int] = (64, 128),
        depths: Sequence[int] = (1, 3),
        heads: Sequence[int] = (2, 4),
        expansion: int = 2,
    ) -> None:
        super().__init__()
        self.pixels = PixelNormalization()
        self.stem = nn.Sequential(
            *_convolution(3, stem, stride=2),
            *_convolution(stem, stem),
            *_convolution(stem, widths[0], stride=2),
            nn.Conv2d(widths[0], widths[0], 3, 1, 1),
        )
        self.position = nn.Parameter(0.02 * torch.randn(1, 64, widths[0]))
        self.early = nn.ModuleList(Block(widths[0], heads[0], expansion) for _ in range(depths[0]))
        self.merge_norm = nn.LayerNorm(widths[0])
        self.merge = nn.Conv2d(widths[0], widths[1], 3, 2, 1)
        self.late = nn.ModuleList(Block(widths[1], heads[1], expansion) for _ in range(depths[1]))
        self.norm = nn.LayerNorm(widths[1])
        self.head = nn.Linear(widths[1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.stem(self.pixels(images)).flatten(2).transpose(1, 2) + self.position
        for block in self.early:
            tokens = block(tokens, side=8)
        grid = self.merge_norm(tokens).transpose(1, 2).unflatten(2, (8, 8))
        tokens = self.merge(grid).flatten(2).transpose(1, 2)
        for block in self.late:
            tokens = block(tokens, side=4)
        logits: Tensor = self.head(self.norm(tokens).mean(dim=1))
        return logits
