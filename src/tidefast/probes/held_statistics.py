"""BatchNorm layers whose statistics are held in one vector, laid out like the arena."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from tidefast.core.mode import Mode

Rule = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From a layer's input [batch, channels, ...] and its mean and variance [channels] to those it normalises with."""


class HeldStatistics(Mode):
    """The BatchNorm layers of a private network; each normalises with its part of a vector that the method keeps.

    A layer's mean and variance stand where the arena has its scale and shift, so that a state field with this layout
    is `layered` like one of parameters; layers without scale and shift come after all others. Outside `using` and
    `moving` the layers have the source's statistics. Other layers, and their places in the vector, are left alone.

    >>> net = nn.Sequential(nn.BatchNorm1d(1)).eval()
    >>> held = HeldStatistics.install(net, ["0.weight", "0.bias"])
    >>> batch = torch.tensor([[1.0], [3.0]])
    >>> with held.using(torch.tensor([2.0, 1.0])):
    ...     net(batch).flatten().round(decimals=3).tolist()
    [-1.0, 1.0]
    >>> with held.moving(held.source, exponential(0.5)) as after:
    ...     _ = net(batch)
    >>> after.tolist()  # half way from mean 0 and variance 1 to mean 2 and variance 1
    [1.0, 1.0]
    """

    def __init__(self, source: Tensor) -> None:
        self.source = source
        """The statistics of the source model, flat."""
        self._vector = source
        self._rule: Rule | None = None
        self._after = source

    @classmethod
    def install(cls, model: nn.Module, names: Sequence[str]) -> HeldStatistics:
        """Replace the BatchNorm layers of a private model that will have an arena of the parameters `names`."""
        parameters = dict(model.named_parameters(remove_duplicate=False))
        places: dict[int, int] = {}
        length = 0
        for name in names:
            if id(parameters[name]) not in places:
                places[id(parameters[name])] = length
                length += parameters[name].numel()
        layers: dict[_BatchNorm, int | None] = {
            module: places.get(id(module.weight))
            for module in model.modules()
            if isinstance(module, _BatchNorm) and module.running_mean is not None
        }
        for layer, place in layers.items():
            if place is None:
                layers[layer], length = length, length + 2 * layer.num_features
        first = next(iter(layers), None)
        mean = torch.zeros(0) if first is None else cast(Tensor, first.running_mean)
        held = cls(torch.zeros(length, dtype=mean.dtype, device=mean.device))
        for module in list(model.modules()):
            for leaf, child in module._modules.items():
                if isinstance(child, _BatchNorm) and child in layers:
                    module._modules[leaf] = _HeldNorm(child, held, cast(int, layers[child]))
        return held

    @staticmethod
    def of(model: nn.Module) -> HeldStatistics:
        """Those that `install` gave a model."""
        for module in model.modules():
            if isinstance(module, _HeldNorm):
                return module.held
        return HeldStatistics(torch.zeros(0))

    def using(self, statistics: Tensor) -> AbstractContextManager[None]:
        """Within the block the layers normalise with `statistics`."""
        return self.during(_vector=statistics)

    @contextmanager
    def moving(self, statistics: Tensor, rule: Rule) -> Iterator[Tensor]:
        """Within the block each layer normalises with what `rule` makes of its input and `statistics`.

        Gives a vector that holds what the rule made, without a graph, once the network has run; `statistics` is not
        written to.
        """
        after = statistics.clone()
        with self.during(_vector=statistics, _rule=rule, _after=after):
            yield after


class _HeldNorm(nn.Module):
    """One BatchNorm layer; it has the parameters of the layer whose place it takes."""

    def __init__(self, layer: _BatchNorm, held: HeldStatistics, place: int) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.eps, self.held, self.training = layer.eps, held, False
        width = layer.num_features
        self._mean, self._variance = slice(place, place + width), slice(place + width, place + 2 * width)
        held.source[self._mean] = cast(Tensor, layer.running_mean)
        held.source[self._variance] = cast(Tensor, layer.running_var)

    def in_use(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the variance that it normalises these inputs with."""
        mean, variance = self.held._vector[self._mean], self.held._vector[self._variance]
        return (mean, variance) if self.held._rule is None else self.held._rule(inputs, mean, variance)

    def forward(self, inputs: Tensor) -> Tensor:
        held = self.held
        mean, variance = self.in_use(inputs)
        if held._rule is None:
            return functional.batch_norm(inputs, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        held._after[self._mean], held._after[self._variance] = mean.detach(), variance.detach()
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = (1, -1, *(1,) * (inputs.dim() - 2))
        return torch.addcmul(shift.view(shape), inputs, scale.view(shape))


def is_held(module: nn.Module) -> bool:
    """Whether a module is a layer that `HeldStatistics` put in the place of a BatchNorm."""
    return isinstance(module, _HeldNorm)


def exponential(momentum: float) -> Rule:
    """mean <- (1 - momentum) mean + momentum mean of the batch, and so the variance (biased); gradients reach both."""

    def rule(inputs: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        places = [0, *range(2, inputs.dim())]
        batch_mean = inputs.mean(places, keepdim=True)
        batch_variance = (inputs - batch_mean).square().mean(places)  # torch.var_mean takes far longer on a CPU
        batch_mean = batch_mean.flatten()
        batch_mean, batch_variance = batch_mean.to(mean), batch_variance.to(variance)  # of half precision in autocast
        return torch.lerp(mean, batch_mean, momentum), torch.lerp(variance, batch_variance, momentum)

    return rule
