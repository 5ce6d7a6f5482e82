"""Augmentations of a batch of images in [0, 1]; one random draw is shared by the whole batch."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from tidefast.core.constraints import Constrained

Padding = Literal["reflect", "edge"]
_BLUR_REACH = 2


def call_augmentation(augment: Callable[..., Tensor], images: Tensor, generator: torch.Generator) -> Tensor:
    """Call `augment(images)`, with `generator=` where it takes one, and check what comes back."""
    try:
        takes_generator = "generator" in inspect.signature(augment).parameters
    except ValueError:  # some built-in callables have no signature
        takes_generator = False
    views = augment(images, generator=generator) if takes_generator else augment(images)
    if not isinstance(views, Tensor) or views.shape != images.shape:
        got = tuple(views.shape) if isinstance(views, Tensor) else type(views).__name__
        raise ValueError(f"augment must return images of the shape it was given, {tuple(images.shape)}; got {got}")
    return views


@dataclass(frozen=True)
class ColourAffine(Constrained):
    """Colour jitter in random order, a small rotation, shift and zoom, and a flip: the augmentation of ROID and CMF.

    The published pipeline pads by half the image's side, moves the large canvas and crops the centre. The
    motion never looks past the canvas, so sampling the image itself with its border continued is the same.

    >>> images = torch.rand(2, 3, 8, 8)
    >>> views = ColourAffine()(images, generator=torch.Generator().manual_seed(0))
    >>> views.shape, bool((views >= 0).all() and (views <= 1).all())
    (torch.Size([2, 3, 8, 8]), True)
    """

    padding: Padding = "reflect"
    """How the border is continued: "reflect" or "edge"."""

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self._moved(images, generator, margin=0).clamp(0.0, 1.0)

    def _moved(self, images: Tensor, generator: torch.Generator | None, margin: int) -> Tensor:
        """Colours and position changed; the result is larger than the images by `margin` pixels on each side."""
        if images.dim() != 4:
            raise ValueError(
                f"{type(self).__name__} augments images [batch, channels, height, width], got shape "
                f"{tuple(images.shape)}; pass augment= (any callable on a batch)"
            )
        uniform = functools.partial(_uniform, generator)
        views = images.clamp(0.0, 1.0)
        for operation in torch.randperm(5, generator=generator).tolist():
            if operation == 0:
                views = (views * uniform(0.6, 1.4)).clamp(0.0, 1.0)
            elif operation == 1:
                views = _blend(views, grey(views).mean((1, 2, 3), keepdim=True), uniform(0.7, 1.3))
            elif operation == 2:
                views = _blend(views, grey(views), uniform(0.5, 1.5))
            elif operation == 3:
                views = shift_hue(views, uniform(-0.06, 0.06))
            else:
                views = views.clamp(1e-8, 1.0) ** uniform(0.7, 1.3)
        height, width = images.shape[-2:]
        return _affine(
            views,
            angle=math.radians(uniform(-15.0, 15.0)),
            shift=(round(uniform(-_reach(width), _reach(width))), round(uniform(-_reach(height), _reach(height)))),
            zoom=uniform(0.9, 1.1),
            flip=uniform(0.0, 1.0) < 0.5,
            padding="reflection" if self.padding == "reflect" else "border",
            margin=margin,
        )


@dataclass(frozen=True)
class ColourAffineBlur(ColourAffine):
    """`ColourAffine` with its border held, then a slight blur and noise: the augmentation of CoTTA and its kin.

    >>> images = torch.rand(2, 3, 8, 8)
    >>> views = ColourAffineBlur()(images, generator=torch.Generator().manual_seed(0))
    >>> views.shape, bool((views >= 0).all() and (views <= 1).all())
    (torch.Size([2, 3, 8, 8]), True)
    """

    padding: Padding = "edge"

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        moved = self._moved(images, generator, margin=_BLUR_REACH)  # what lies outside is blurred into the border
        views = _blur(moved, _uniform(generator, 0.001, 0.5))
        noise = torch.randn(views.shape, generator=generator, dtype=views.dtype).to(views.device)
        return (views + 0.005 * noise).clamp(0.0, 1.0)


COLOUR_AFFINE, COLOUR_AFFINE_BLUR = ColourAffine(), ColourAffineBlur()
"""What methods use where they were given no augmentation."""


def _reach(side: int) -> float:
    """Farthest shift along a side: a sixteenth of the canvas, which is padded by half a side, rounded down."""
    return (side + 2 * (side // 2)) / 16


def grey(images: Tensor) -> Tensor:
    """Luma of RGB images [batch, 1, height, width]; images of other depths are averaged over their channels."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    weights = torch.stack([images.new_full((), share) for share in (0.2989, 0.587, 0.114)]).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def shift_hue(images: Tensor, turn: float) -> Tensor:
    """Rotate the hue of RGB images by `turn` of a full circle; images of other depths have no hue.

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> shift_hue(red, 1 / 3).flatten().round(decimals=3).tolist()
    [0.0, 1.0, 0.0]
    """
    if images.shape[1] != 3:
        return images
    value, low = images.amax(1), images.amin(1)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    red, green, blue = images.unbind(1)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe),
    )
    # Each channel is `value` lowered by a trapezoid of the hue, 120 degrees apart.
    offsets = torch.arange(5, 0, -2, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
    position = (offsets + (hue + 6.0 * turn).unsqueeze(1)) % 6.0
    trapezoid = torch.minimum(position, 4.0 - position).clamp(0.0, 1.0)
    return value.unsqueeze(1) - chroma.unsqueeze(1) * trapezoid


def _blend(images: Tensor, other: Tensor, ratio: float) -> Tensor:
    return (ratio * images + (1.0 - ratio) * other).clamp(0.0, 1.0)


def _uniform(generator: torch.Generator | None, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


def _blur(images: Tensor, deviation: float) -> Tensor:
    """Gaussian blur with a kernel of 5 x 5; the result lacks two pixels on each side."""
    at = torch.arange(-_BLUR_REACH, _BLUR_REACH + 1, device=images.device, dtype=images.dtype)
    kernel = torch.exp(-0.5 * (at / deviation) ** 2)
    kernel, channels = kernel / kernel.sum(), images.shape[1]
    images = functional.conv2d(images, kernel.view(1, 1, 1, -1).expand(channels, -1, -1, -1), groups=channels)
    return functional.conv2d(images, kernel.view(1, 1, -1, 1).expand(channels, -1, -1, -1), groups=channels)


def _affine(
    images: Tensor, *, angle: float, shift: tuple[float, float], zoom: float, flip: bool, padding: str, margin: int = 0
) -> Tensor:
    """Rotate about the centre, zoom, shift by pixels, then flip; one bilinear sampling, `margin` pixels wider."""
    height, width = images.shape[-2:]
    x = torch.arange(-margin, width + margin, device=images.device, dtype=images.dtype) - (width - 1) / 2
    y = torch.arange(-margin, height + margin, device=images.device, dtype=images.dtype) - (height - 1) / 2
    x, y = (-x if flip else x) - shift[0], y - shift[1]
    cosine, sine = math.cos(angle) / zoom, math.sin(angle) / zoom
    columns = cosine * x[None, :] + sine * y[:, None]
    rows = -sine * x[None, :] + cosine * y[:, None]
    grid = torch.stack([columns * 2 / max(width - 1, 1), rows * 2 / max(height - 1, 1)], dim=-1)
    return functional.grid_sample(
        images, grid.expand(len(images), -1, -1, -1), mode="bilinear", padding_mode=padding, align_corners=True
    )
