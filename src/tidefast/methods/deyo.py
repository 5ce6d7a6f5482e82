"""DeYO: entropy minimisation on samples whose prediction needs the object's shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional

from tidefast.core import losses
from tidefast.core.constraints import Count, NonNegative, Positive
from tidefast.core.normalization import LAST_LAYERS, Statistics, outside, require_affine_names
from tidefast.core.state import State
from tidefast.core.step import Asking, Objective, Step, Views
from tidefast.methods.about import About, Paper
from tidefast.methods.base import Method, registry

Destroyer = Literal["patches", "pixels", "occlusion"]


@registry.register("deyo")
@dataclass(frozen=True)
class DeYO(Method):
    """L = mean over S of (exp(E0 - H_i) + exp(D_i)) H_i, where D_i = p_i,y(x) - p_i,y(x').

    x' is the image with its shape destroyed, and y the class of x. S holds the samples with H_i below the margin and
    D_i above `shape_margin`: those whose prediction falls when the shape goes. Nothing selected: no step at all.
    """

    about: ClassVar[About] = About(
        title="DeYO",
        family="Entropy",
        adapts="scale and shift",
        equation=r"""
        L = \frac{1}{|S|} \sum_{i \in S} \left( e^{E_0 - H_i} + e^{D_i} \right) H_i, \qquad
        D_i = p_{i,\hat y_i}(x_i) - p_{i,\hat y_i}(x_i'), \qquad
        S = \{ i : H_i < E_1,\; D_i > \delta \}
        """,
        paper=Paper(
            "Lee and others",
            "Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors",
            "ICLR 2024",
            code="Jhyun17/DeYO",
        ),
        needs="images [batch, channels, height, width]",
    )
    together: ClassVar[bool] = True
    busiest: ClassVar[Mapping[str, Any]] = {"entropy_margin": 1.1, "shape_margin": -1.0}

    entropy_margin: Positive = 0.5
    """Of H_i, as a multiple of ln(classes)."""
    weight_margin: NonNegative = 0.4
    """E0 as a multiple of ln(classes)."""
    shape_margin: Annotated[float, Interval(ge=-1.0, le=1.0)] = 0.2
    """Of D_i, the pseudo-label probability difference."""
    destroy: Destroyer = "patches"
    """How the shape goes: "patches" shuffles tiles, "pixels" all pixels, "occlusion" covers the centre."""
    grid: Count = 4
    """Tiles along each side."""
    skip: tuple[str, ...] = LAST_LAYERS
    """Layers whose name contains one of these stay as they are, and so does one called exactly `norm`."""

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_batch()
        return require_affine_names(model, "DeYO", outside(self.skip))

    def loss(self, step: Step, state: State) -> Asking:
        scale = math.log(step.num_classes)
        entropy = losses.entropy(step.logits)
        certain = (entropy.detach() < self.entropy_margin * scale).nonzero()[:, 0]
        if len(certain) == 0:
            return Objective(loss=None, selected=0, step=False)
        destroyed = destroy_shape(step.images[certain], self.destroy, self.grid, step.generator)
        lone = len(certain) == 1 and step.network.statistics.needs_batch
        after = yield Views(destroyed, gradient=False, source_statistics=lone)
        difference = _lost_probability(step.logits.detach()[certain], after)
        shaped = (difference > self.shape_margin).nonzero()[:, 0]
        if len(shaped) == 0:
            return Objective(loss=None, selected=0, step=False)
        kept = entropy[certain[shaped]]
        weights = torch.exp(self.weight_margin * scale - kept.detach()) + torch.exp(difference[shaped])
        return Objective((weights * kept).mean(), selected=len(shaped))

    def passes(self, selected: float) -> tuple[float, float]:
        return 1.0 + selected, 1.0


def _lost_probability(logits: Tensor, after: Tensor) -> Tensor:
    """D_i: what the probability of each image's class loses with its shape."""
    before = logits.softmax(1)
    labels = before.argmax(1, keepdim=True)
    return (before.gather(1, labels) - after.softmax(1).gather(1, labels))[:, 0]


def destroy_shape(images: Tensor, how: Destroyer, grid: int, generator: torch.Generator) -> Tensor:
    """Images [batch, channels, height, width] whose colours and textures stay and whose shapes do not.

    >>> image = torch.arange(16.0).view(1, 1, 4, 4)
    >>> tiles = destroy_shape(image, "patches", 2, torch.Generator().manual_seed(0))
    >>> bool((tiles != image).any()), tiles.sum() == image.sum()
    (True, tensor(True))
    """
    if images.dim() != 4:
        raise ValueError(
            f"DeYO destroys the shape in images [batch, channels, height, width], got shape {tuple(images.shape)}"
        )
    if min(images.shape[-2:]) < grid:
        raise ValueError(
            f"images of {images.shape[-2]} x {images.shape[-1]} pixels cannot be cut into {grid} x {grid} tiles: "
            "choose a smaller grid"
        )
    return _DESTROYERS[how](images, grid, generator)


def _shuffle_patches(images: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    """Each image's tiles in an order of its own; sides that do not divide are resized and back."""
    size = images.shape[-2:]
    fitting = (size[0] // grid * grid, size[1] // grid * grid)
    tiles = functional.interpolate(images, fitting, mode="bilinear", antialias=True) if fitting != size else images
    batch, channels, height, width = tiles.shape
    tiles = tiles.reshape(batch, channels, grid, height // grid, grid, width // grid)
    tiles = _shuffle(tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2), generator)
    tiles = tiles.reshape(batch, grid, grid, channels, height // grid, width // grid)
    tiles = tiles.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, height, width)
    return functional.interpolate(tiles, size, mode="bilinear", antialias=True) if fitting != size else tiles


def _shuffle_pixels(images: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    """All pixels in one random order, which the images of a batch share."""
    pixels = images.flatten(2)
    order = torch.randperm(pixels.shape[2], generator=generator).to(images.device)
    return pixels[:, :, order].reshape(images.shape)


def _cover_centre(images: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    """The centre, half as wide and high as the image, takes the mean colour of the whole."""
    height, width = images.shape[-2:]
    covered = images.clone()
    top, left = height // 4, width // 4
    covered[..., top : top + height // 2, left : left + width // 2] = images.mean((2, 3), keepdim=True)
    return covered


def _shuffle(values: Tensor, generator: torch.Generator) -> Tensor:
    """The entries along dimension 1 in random order, another one for each row."""
    order = torch.rand(values.shape[:2], generator=generator).argsort(1).to(values.device)
    return values[torch.arange(len(values), device=values.device)[:, None], order]


_DESTROYERS: dict[Destroyer, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "patches": _shuffle_patches,
    "pixels": _shuffle_pixels,
    "occlusion": _cover_centre,
}
