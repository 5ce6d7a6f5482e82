"""Histograms of oriented gradients: how edges lie in each patch of an image, whatever its colours."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

BINS = 9
_CELL = 8


def cell_of(patch: int) -> int:
    """Side of a cell in pixels: 8 where a patch divides into such, else the whole patch.

    >>> cell_of(16), cell_of(8), cell_of(14)
    (8, 8, 14)
    """
    return _CELL if patch % _CELL == 0 else patch


def values_per_patch(patch: int, channels: int = 3) -> int:
    """How many numbers describe a patch.

    >>> values_per_patch(16)
    108
    """
    return channels * BINS * (patch // cell_of(patch)) ** 2


@torch.no_grad()
def histograms(images: Tensor, patch: int) -> Tensor:
    """Histograms [batch, patches, values] of images [batch, channels, height, width].

    Of each channel, the magnitude of the Sobel gradient is summed by direction in 9 bins of 20 degrees over the cells
    of a patch, and the bins of a cell are brought to length 1; a cell without any gradient stays 0. The values of a
    patch are ordered by channel, bin, row and column of the cell. A contrast or brightness of the whole channel
    changes nothing, so that images may be normalised or not.

    >>> edge = torch.zeros(1, 1, 16, 16)
    >>> edge[..., 8:] = 1.0
    >>> histograms(edge, 16).view(9, 2, 2)[:, 0, 0].nonzero().tolist()
    [[4]]
    """
    cell = cell_of(patch)
    rows, columns = images.shape[2] // patch, images.shape[3] // patch
    padded = functional.pad(images, (1, 1, 1, 1), mode="reflect")[..., : rows * patch + 2, : columns * patch + 2]
    beside = padded[..., :-2, :] + 2.0 * padded[..., 1:-1, :] + padded[..., 2:, :]
    above = padded[..., :-2] + 2.0 * padded[..., 1:-1] + padded[..., 2:]
    across, down = beside[..., :-2] - beside[..., 2:], above[..., :-2, :] - above[..., 2:, :]
    magnitude = torch.hypot(across, down)
    bins = torch.floor(BINS * torch.atan2(across, down) / math.pi).remainder(BINS)
    sums = [functional.avg_pool2d(torch.where(bins == index, magnitude, 0.0), cell) for index in range(BINS)]
    cells = functional.normalize(torch.stack(sums, dim=2) * cell**2, dim=2)
    side = patch // cell
    cells = cells.view(*cells.shape[:3], rows, side, columns, side)
    return cells.permute(0, 3, 5, 1, 2, 4, 6).flatten(3).flatten(1, 2)
