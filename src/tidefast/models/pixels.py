"""Input normalisation, part of each named network: a caller hands over plain images in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Per-channel mean and standard deviation of the CIFAR-10 training images.
MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2470, 0.2435, 0.2616)


class PixelNormalization(nn.Module):
    """(image - mean) / deviation per colour channel; constant, never adapted.

    >>> grey = torch.tensor(MEAN).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    >>> PixelNormalization()(grey).abs().max().item()
    0.0
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Sequence[float] = MEAN, deviation: Sequence[float] = DEVIATION) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.deviation
