"""SWAG: further training on source data gives a mean and a variance for every weight."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tidefast.core.arena import Arena
from tidefast.core.network import Network
from tidefast.core.source import SourceData

_MOMENTUM, _WEIGHT_DECAY = 0.9, 5e-4
_RISE = 3


def weight_average(
    network: Network, source: SourceData, *, epochs: int, snapshots: int, rate: float, final_rate: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the adapted parameters [len(arena)] over snapshots of a training on labelled source data.

    `snapshots` are taken in each of the `epochs` but the first, at even distances, the last at its end. The learning
    rate is `rate` for two epochs and then rises to `final_rate` within three. The source's statistics normalise
    throughout. The arena is left where the training ends.
    """
    arena = network.arena
    average = _Average(arena)
    optimizer = torch.optim.SGD([arena.parameter], lr=rate, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
    batches = 0
    with network.statistics.of_source():
        for epoch in range(epochs):
            risen = min(1.0, max(0, epoch - 1) / _RISE)
            optimizer.param_groups[0]["lr"] = rate + (final_rate - rate) * risen
            for number, (images, labels) in enumerate(source.labelled()):
                arena.zero_gradients()
                torch.autograd.backward(functional.cross_entropy(network(images), labels))
                optimizer.step()
                if epoch == 0:
                    batches = number + 1
                elif (number + 1) * snapshots // batches > number * snapshots // batches:
                    average.add(arena.values)
    return average.mean, average.variance


class _Average:
    """Mean and variance of the vectors seen so far. By Welford's recurrence, so that no variance is negative."""

    def __init__(self, arena: Arena) -> None:
        self.mean, self._squares = torch.zeros_like(arena.values), torch.zeros_like(arena.values)
        self._count = 0

    def add(self, values: Tensor) -> None:
        self._count += 1
        change = values - self.mean
        self.mean.add_(change, alpha=1.0 / self._count)
        self._squares.addcmul_(change, values - self.mean)

    @property
    def variance(self) -> Tensor:
        return self._squares.clamp(min=0.0) / self._count
