"""AugMix: many views of one image, each a mixture of short chains of mild operations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from tidefast.core.constraints import Constrained, Count

_CHAINS = 3
_LONGEST = 3


@dataclass(frozen=True)
class AugMix(Constrained):
    """Crops and flips of an image in [0, 1], each mixed with three chains of one to three operations at severity 1.

    The operations: autocontrast, equalize, posterize, solarize, rotate, shear and translate along either axis.
    Mixture weights are Dirichlet(1, 1, 1) among the chains and Beta(1, 1) between them and the crop.

    >>> views = AugMix(views=4)(torch.rand(3, 8, 8), torch.Generator().manual_seed(0))
    >>> views.shape, bool((views >= 0).all() and (views <= 1).all())
    (torch.Size([4, 3, 8, 8]), True)
    """

    views: Count
    crop: Literal["resized", "padded"] = "resized"
    """"resized": 8 to 100 % of the area, back at full size; "padded": moved by up to 4 pixels."""

    def __call__(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Views [views, channels, height, width] of an image [channels, height, width]."""
        image = image.clamp(0.0, 1.0)
        crops = self._crops(image, generator)
        count = _CHAINS * self.views
        chains = crops.repeat(_CHAINS, 1, 1, 1)
        lengths = torch.randint(1, _LONGEST + 1, (count,), generator=generator)
        for position in range(_LONGEST):
            operation = torch.randint(0, _TONES + _MOTIONS, (count,), generator=generator)
            strength = 0.01 + 0.09 * torch.rand(count, generator=generator)  # of the largest there is: severity 1 of 10
            sign = 2.0 * torch.randint(0, 2, (count,), generator=generator) - 1.0
            operation[position >= lengths] = -1
            chains = _apply(chains, operation, strength, sign)
        shares = -torch.log1p(-torch.rand(_CHAINS, self.views, 1, 1, 1, generator=generator))
        shares = (shares / shares.sum(0)).to(image)
        own = torch.rand(self.views, 1, 1, 1, generator=generator).to(image)
        mixed = (shares * chains.view(_CHAINS, *crops.shape)).sum(0)
        return (own * crops + (1.0 - own) * mixed).clamp(0.0, 1.0)

    def _crops(self, image: Tensor, generator: torch.Generator) -> Tensor:
        flip = 1.0 - 2.0 * torch.randint(0, 2, (self.views,), generator=generator)
        ones, zeros = torch.ones(self.views), torch.zeros(self.views)
        if self.crop == "padded":
            shift = torch.randint(-4, 5, (2, self.views), generator=generator).float()
            matrices = _matrices(flip, zeros, shift[0] * flip, zeros, ones, shift[1])
            return _warp(image.expand(self.views, -1, -1, -1), matrices)
        height, width = image.shape[-2:]
        tries = (self.views, 10)
        area = height * width * (0.08 + 0.92 * torch.rand(tries, generator=generator))
        ratio = torch.exp(math.log(4 / 3) * (2.0 * torch.rand(tries, generator=generator) - 1.0))
        heights, widths = (area / ratio).sqrt().round().clamp(min=1), (area * ratio).sqrt().round().clamp(min=1)
        fits = (heights <= height) & (widths <= width)
        first = fits.int().argmax(1, keepdim=True)
        fitting = fits.any(1)
        tall = torch.where(fitting, heights.gather(1, first)[:, 0], height)
        wide = torch.where(fitting, widths.gather(1, first)[:, 0], width)
        top = (torch.rand(self.views, generator=generator) * (height - tall + 1)).floor()
        left = (torch.rand(self.views, generator=generator) * (width - wide + 1)).floor()
        across, down = left + wide / 2 - width / 2, top + tall / 2 - height / 2
        matrices = _matrices(flip * wide / width, zeros, across, zeros, tall / height, down)
        return _warp(image.expand(self.views, -1, -1, -1), matrices)


def _apply(images: Tensor, operation: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Each image after its own operation: a number below _TONES, a motion above, none when negative."""
    changed = images.clone()
    for number in range(_TONES):
        chosen = (operation == number).nonzero()[:, 0]
        if len(chosen):
            place = chosen.to(images.device)
            changed[place] = _tone(number, images[place], strength[chosen])
    moving = (operation >= _TONES).nonzero()[:, 0]
    if len(moving):
        place = moving.to(images.device)
        motion = _motions(operation[moving] - _TONES, strength[moving], sign[moving], images.shape[-2:])
        changed[place] = _warp(images[place], motion)
    return changed


_TONES = 4


def _tone(number: int, images: Tensor, strength: Tensor) -> Tensor:
    """Autocontrast, equalize, posterize or solarize."""
    if number == 0:
        low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
        return torch.where(high > low, (images - low) / torch.where(high > low, high - low, 1.0), images)
    if number == 1:
        return equalize(images)
    if number == 2:  # at severity 1 always four bits
        return torch.floor((images * 255).round() / 16) * 16 / 255
    threshold = (256 - torch.floor(256 * strength)).to(images).view(-1, 1, 1, 1) / 255
    return torch.where(images < threshold, images, 1.0 - images)


def equalize(images: Tensor) -> Tensor:
    """Spread the 256 levels of each channel of images [batch, channels, height, width] evenly.

    >>> equalize(torch.tensor([0.2, 0.2, 0.4, 0.4]).repeat(256).view(1, 1, 32, 32)).unique().tolist()
    [0.0, 1.0]
    """
    levels = (images * 255).round().long().flatten(2).flatten(0, 1)
    counts = torch.zeros(len(levels), 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(1, levels, torch.ones_like(levels))
    last = counts.gather(1, levels.amax(1, keepdim=True))
    step = (levels.shape[1] - last) // 255
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return (table.gather(1, levels).to(images.dtype) / 255).view(images.shape)


_MOTIONS = 5


def _motions(number: Tensor, strength: Tensor, sign: Tensor, size: torch.Size) -> Tensor:
    """Matrices [batch, 2, 3] of rotation, of shear along x and y, of translation along x and y."""
    height, width = size
    angle = torch.deg2rad(sign * torch.floor(30 * strength)) * (number == 0)
    shear = sign * 0.3 * strength
    shear_x, shear_y = shear * (number == 1), shear * (number == 2)
    shift_x = sign * torch.floor(width / 3 * strength) * (number == 3) + shear_x * height / 2  # about the corner
    shift_y = sign * torch.floor(height / 3 * strength) * (number == 4) + shear_y * width / 2
    cosine, sine = torch.cos(angle), torch.sin(angle)
    return _matrices(cosine, sine + shear_x, shift_x, shear_y - sine, cosine, shift_y)


def _matrices(*entries: Tensor) -> Tensor:
    """Six entries [batch], row by row, as matrices [batch, 2, 3]."""
    return torch.stack(entries, dim=1).view(-1, 2, 3)


def _warp(images: Tensor, matrices: Tensor) -> Tensor:
    """Sample images bilinearly; a matrix takes a place in the result to one in the image, in pixels from the centre.

    A place outside the image is black; one inside is not darkened by what lies beyond the border.
    """
    height, width = images.shape[-2:]
    matrices = matrices.to(images)
    x = torch.arange(width, device=images.device, dtype=images.dtype) - (width - 1) / 2
    y = torch.arange(height, device=images.device, dtype=images.dtype) - (height - 1) / 2
    row = matrices[:, :, :1] * x + matrices[:, :, 2:]
    places = row[:, :, None, :] + (matrices[:, :, 1:2] * y)[..., None]
    grid = torch.stack([places[:, 0] * 2 / width, places[:, 1] * 2 / height], dim=-1)
    sampled = functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    inside = ((grid >= -1.0) & (grid < 1.0)).all(-1)
    return torch.where(inside[:, None], sampled, 0.0)
