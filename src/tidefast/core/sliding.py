"""Sliding statistics: few images normalised by what the latest ones of their stream showed, none of which runs again.

Each batch normalisation layer has a mean and a variance of its channels: those of a pass over a whole window at first,
which every later pass moves to those of its own images, as far as their number says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

HALF_PRECISION = (torch.float16, torch.bfloat16)
_FAR = 100.0
"""Times its own variance: where a whole window finds statistics further from it than that, it begins new ones."""


class SlidingPass:
    """What one pass makes of the statistics of a network's layers.

    layers: each with its number of channels.
    before: means and variances [2, ..., channels], layer after layer; None: those of the pass are the first.
    share: what the images of the pass count for, of 1; a number, or a tensor that fits `before`.
    normalizes: whether layers normalise by what `moved` gives, and not by the statistics of the pass alone.

    >>> layer = nn.BatchNorm1d(1)
    >>> sliding = SlidingPass([(layer, 1)], torch.tensor([[2.0], [1.0]]), share=0.5)
    >>> sliding.moved(layer, torch.tensor([[4.0], [1.0]])).flatten().tolist()  # one half about 2, the other about 4
    [3.0, 2.0]
    """

    def __init__(
        self,
        layers: Sequence[tuple[nn.Module, int]],
        before: Tensor | None = None,
        share: float | Tensor = 1.0,
        *,
        normalizes: bool = False,
    ) -> None:
        self.normalizes = normalizes
        self._before: dict[nn.Module, Tensor] = {}
        if before is not None:
            parts = torch.split(before, [channels for _, channels in layers], -1)
            self._before = dict(zip([layer for layer, _ in layers], parts, strict=True))
        self._layers, self._share = layers, share
        self._after: dict[nn.Module, Tensor] = {}
        self._told_apart = True

    def moved(self, layer: nn.Module, moments: Tensor) -> Tensor:
        """The layer's statistics, now that it has got images with such means and variances [2, ..., channels]."""
        before = self._before.get(layer)
        if before is not None:
            moments = self._mixed(before, moments.to(before.dtype))
        self._told_apart &= layer not in self._after
        self._after[layer] = moments
        return moments

    def _mixed(self, before: Tensor, moments: Tensor) -> Tensor:
        """Means and variances of all together, those before and those of the pass."""
        away, share = moments[0] - before[0], self._share
        if not self.normalizes:
            far = torch.addcmul(before[1], away, away) > _FAR * moments[1]
            share = torch.where(far, torch.ones_like(away), share)
        mixed = torch.lerp(before, moments, share)
        mixed[1].addcmul_(away, away * (share * (1.0 - share)))
        return mixed

    def after(self) -> Tensor | None:
        """Those of all layers [2, ..., channels]; None where one ran more than once, and has no single ones."""
        if not self._after or not self._told_apart:
            return None
        ran = next(iter(self._after.values()))
        parts = [self._after.get(layer) for layer, _ in self._layers]
        return torch.cat(
            [
                ran.new_zeros(*ran.shape[:-1], channels) if part is None else part
                for part, (_, channels) in zip(parts, self._layers, strict=True)
            ],
            -1,
        )


def moments(inputs: Tensor, dimensions: Sequence[int]) -> Tensor:
    """Mean and variance over some dimensions: [2, *the others], without a graph.

    Step by step, which is several times as fast as `torch.var_mean`.
    """
    inputs, dimensions = inputs.detach(), tuple(dimensions)
    if inputs.dtype in HALF_PRECISION:
        inputs = inputs.float()
    if not dimensions:
        return torch.stack([inputs, torch.zeros_like(inputs)])
    mean = inputs.mean(dimensions, keepdim=True)
    variance = (inputs - mean).square_().mean(dimensions)
    return torch.stack([mean.view(variance.shape), variance])


def moments_of_each(inputs: Tensor, sizes: list[int]) -> Tensor:
    """Of the channels, over the rows of each stream, of which there are `sizes` [2, streams, channels]."""
    return torch.stack([moments(part, (0, *range(2, part.dim()))) for part in torch.split(inputs, sizes)], 1)


def fitting(statistics: Tensor, layer: nn.Module, inputs: Tensor) -> Tensor:
    """In the type that a layer's kernel wants beside its inputs and the layer's own numbers."""
    weight: Tensor | None = getattr(layer, "weight", None)
    return statistics.to(torch.promote_types(inputs.dtype, torch.float32) if weight is None else weight.dtype)
