"""Style: how much each channel of a network's first layers varies over a batch, which tells corruptions apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tidefast.core.network import Network
from tidefast.errors import how_to_install

Extractor = Callable[[Tensor], Sequence[Tensor]]
"""From images to feature maps [batch, channels, ...], each image on its own."""

ExtractorName = Literal["model", "vgg19"]
"""Those that have a name."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_EPSILON = 1e-8  # a channel that does not vary has a logarithm too


@dataclass(frozen=True)
class ChannelMoments:
    """Mean and variance of each channel over the positions of each image; those of any batch follow from them."""

    mean: Tensor
    """[images, channels]"""
    variance: Tensor
    """[images, channels], biased"""
    positions: Tensor
    """[channels]: over how many positions of an image"""

    @classmethod
    def of(cls, maps: Sequence[Tensor]) -> ChannelMoments:
        """Of feature maps [images, channels, ...], one after the other."""
        flat = [
            (layer if layer.dtype == torch.float64 else layer.float()).flatten(2) for layer in map(_with_position, maps)
        ]
        means = [layer.mean(2) for layer in flat]
        # In two passes, which take a twentieth of the time of torch.var_mean.
        variances = [(layer - mean[:, :, None]).square_().mean(2) for layer, mean in zip(flat, means, strict=True)]
        positions = torch.cat([layer.new_full((layer.shape[1],), layer.shape[2]) for layer in flat])
        return cls(torch.cat(means, 1), torch.cat(variances, 1), positions)

    @classmethod
    def joined(cls, parts: Sequence[ChannelMoments]) -> ChannelMoments:
        """Those of all images of several batches."""
        means, variances = [part.mean for part in parts], [part.variance for part in parts]
        return cls(torch.cat(means), torch.cat(variances), parts[0].positions)

    def __len__(self) -> int:
        return len(self.mean)

    def style(self, images: Tensor | slice = slice(None)) -> Tensor:
        """Logarithm of the unbiased variance of each channel over all positions of the chosen images [channels].

        >>> maps = torch.tensor([[[1.0, 2.0]], [[3.0, 6.0]]])
        >>> ChannelMoments.of([maps]).style().exp().item(), maps.var().item()
        (4.666666507720947, 4.666666507720947)
        """
        mean, variance = self.mean[images], self.variance[images]
        within, between = variance.mean(0), (mean - mean.mean(0)).square().mean(0)
        values = len(mean) * self.positions
        return torch.log((within + between) * values / (values - 1).clamp(min=1) + _EPSILON)

    def styles_of_batches(self, size: int, count: int) -> Tensor:
        """Styles [count, channels] of random batches: the images in random order, pass after pass, cut into batches.

        The last batch of a pass is smaller, and left out where it is under a quarter of the size. Images that do not
        make two batches are drawn with replacement.
        """
        generator, styles = torch.Generator().manual_seed(0), list[Tensor]()
        while len(styles) < count:
            if len(self) < 2 * size:
                batches: Sequence[Tensor] = [torch.randint(len(self), (size,), generator=generator)]
            else:
                batches = torch.split(torch.randperm(len(self), generator=generator), size)
            styles += [self.style(batch.to(self.mean.device)) for batch in batches if 4 * len(batch) >= size]
        return torch.stack(styles[:count])


def extractor(style: ExtractorName | Extractor, device: torch.device) -> Extractor | None:
    """What turns images into feature maps; None for "model", where the adapted network does so itself."""
    if not isinstance(style, str):
        return style
    return None if style == "model" else _VGG19().to(device)


@torch.no_grad()
def measure(network: Network, images: Tensor, extract: Extractor | None = None) -> ChannelMoments:
    """The moments of a batch: under `extract`, or in the outputs of the source model's first three convolutions.

    A network with fewer convolutions has fewer outputs; for one with none, the images are their own feature map.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.LazyLinear(10))
    >>> _ = net(torch.rand(1, 3, 8, 8))
    >>> measure(Network(net), torch.rand(5, 3, 8, 8)).style().shape
    torch.Size([10])
    """
    if extract is not None:
        maps = extract(images)
        return ChannelMoments.of(_checked([maps] if isinstance(maps, Tensor) else list(maps), len(images)))
    with network.arena.holding(network.arena.source), network.statistics.of_source():
        return _first_convolutions(network.module, images)


class _Enough(Exception):  # noqa: N818  # no error: it ends a pass that has given what was wanted
    """The layers that were wanted have run."""


def _first_convolutions(module: nn.Module, images: Tensor, count: int = 3) -> ChannelMoments:
    """Of the outputs of the `count` convolutions that run first; the rest of the network does not run."""
    measured: list[ChannelMoments] = []

    def watch(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        measured.append(ChannelMoments.of([output]))  # at once: a layer that comes next may write over it
        if len(measured) == count:
            raise _Enough

    handles = [layer.register_forward_hook(watch) for layer in module.modules() if isinstance(layer, _CONVOLUTIONS)]
    if not handles:
        return ChannelMoments.of([images])
    try:
        module(images)
    except _Enough:
        pass
    finally:
        for handle in handles:
            handle.remove()
    if not measured:
        return ChannelMoments.of([images])
    means, variances = [layer.mean for layer in measured], [layer.variance for layer in measured]
    return ChannelMoments(
        torch.cat(means, 1), torch.cat(variances, 1), torch.cat([layer.positions for layer in measured])
    )


class _VGG19(nn.Module):
    """torchvision's VGG-19 up to its fourth convolution: the outputs of the second, third and fourth."""

    layers: nn.Sequential
    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*list(_vgg19_features())[:8]).requires_grad_(False).eval()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Feature maps of images [batch, 3, height, width] in [0, 1]."""
        maps, wanted = (images.float() - self.mean) / self.deviation, []
        for index, layer in enumerate(self.layers):
            maps = maps.relu() if isinstance(layer, nn.ReLU) else layer(maps)  # torchvision's own writes over its input
            if index in (2, 5, 7):
                wanted.append(maps)
        return wanted


def _vgg19_features() -> nn.Sequential:
    try:
        from torchvision.models import VGG19_Weights, vgg19
    except ImportError as error:
        raise ImportError(f"style='vgg19' comes from torchvision: {how_to_install('vision')}") from error
    try:
        features: nn.Sequential = vgg19(weights=VGG19_Weights.DEFAULT).features
    except OSError as error:
        raise OSError(
            f"the weights of torchvision's VGG-19 are neither in its cache nor on its server ({error}): use "
            "style='model', or a callable of your own"
        ) from error
    return features


def _checked(maps: list[Tensor], images: int) -> list[Tensor]:
    for layer in maps:
        if layer.dim() < 2 or len(layer) != images:
            raise ValueError(
                f"a style needs feature maps [batch, channels, ...] of all {images} images, got {tuple(layer.shape)}"
            )
    return maps


def _with_position(maps: Tensor) -> Tensor:
    return maps[..., None] if maps.dim() == 2 else maps
