"""The arena: all adapted parameters as one flat vector, and all their gradients as another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tidefast.core.finite import all_finite

Unit = Literal["layer", "tensor"]
Rounding = Literal["nearest", "ceil-kept"]


@dataclass(frozen=True)
class ArenaSpan:
    """A named stretch [start, stop) of the arena."""

    name: str
    start: int
    stop: int


class Arena:
    """The named parameters of `model` become views into one vector, in the order of `names`.

    `values` and `gradients` are the flat vectors, `source` is the immutable starting point, and
    `parameter` is what the optimiser sees. Modules of `model` are changed in place: pass a private copy.

    >>> net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> arena = Arena(net, ["1.weight", "1.bias", "3.weight", "3.bias"])
    >>> [layer.name for layer in arena.layers], len(arena)
    (['1', '3'], 8)
    >>> arena.values.add_(1.0)[:4].tolist(), net[3].bias.tolist()
    ([2.0, 2.0, 1.0, 1.0], [1.0, 1.0])
    >>> arena.restore(cut=arena.cut(0.5, "layer"))
    >>> net[1].bias.tolist(), net[3].bias.tolist()
    ([1.0, 1.0], [0.0, 0.0])
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        chosen = {name: parameters[name] for name in names}
        anywhere = next(iter([*parameters.values(), *model.buffers()]), torch.empty(0))
        first = next(iter(chosen.values()), torch.empty(0, device=anywhere.device))
        for name, parameter in chosen.items():
            if parameter.dtype != first.dtype or parameter.device != first.device:
                raise ValueError(
                    f"all adapted parameters must share one dtype and device; {name!r} is {parameter.dtype} on "
                    f"{parameter.device}, others are {first.dtype} on {first.device}"
                )
        if first.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"adapted parameters must be float32 or float64, got {first.dtype}: keep the normalisation layers "
                "in float32 and run the rest under torch.autocast"
            )
        self.tensors: list[ArenaSpan] = []
        offset, places = 0, {}
        for name, parameter in chosen.items():
            if id(parameter) not in places:
                places[id(parameter)] = offset
                self.tensors.append(ArenaSpan(name, offset, offset + parameter.numel()))
                offset += parameter.numel()
        self.layers = _layers(self.tensors)
        self.parameter = nn.Parameter(torch.zeros(offset, dtype=first.dtype, device=first.device))
        self.gradients = torch.zeros_like(self.parameter.data)
        self.parameter.grad = self.gradients
        views: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for leaf, old in module._parameters.items():
                if old is not None and id(old) in places:
                    if id(old) not in views:
                        views[id(old)] = self._view(old, places[id(old)])
                    module._parameters[leaf] = views[id(old)]
        self.source = self.values.clone()
        self._aside: list[Tensor] = []  # own values, one for each block of `holding` that the program is in

    def _view(self, parameter: Tensor, offset: int) -> nn.Parameter:
        """A parameter like `parameter`, memory format included, that lives in the arena at `offset`."""
        strides = parameter.stride()
        dense = parameter.is_contiguous() or (
            parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
        )
        if not dense:
            strides = torch.empty(parameter.shape, device="meta").stride()
        view = nn.Parameter(self.parameter.detach().as_strided(parameter.shape, strides, offset))
        with torch.no_grad():
            view.copy_(parameter)
        view.grad = self.gradients.as_strided(parameter.shape, strides, offset)
        return view

    def __len__(self) -> int:
        return self.parameter.numel()

    @property
    def values(self) -> Tensor:
        """The adapted parameters, flat; writing to it writes to the network."""
        return self.parameter.detach()

    def zero_gradients(self) -> None:
        self.gradients.zero_()

    def is_finite(self) -> bool:
        """Whether every adapted parameter is a finite number."""
        return all_finite(self.parameter)

    def cut(self, fraction: float, unit: Unit = "layer", rounding: Rounding = "nearest") -> int:
        """Where the deepest `fraction` of the layers (or tensors) begins.

        "nearest" rounds the number of units that are reset (half of 15 resets 8), "ceil-kept" rounds the
        number that is kept up (half of 15 keeps 8).
        """
        spans = self.layers if unit == "layer" else self.tensors
        if rounding == "nearest":
            kept = len(spans) - math.floor(fraction * len(spans) + 0.5)
        else:
            kept = math.ceil((1.0 - fraction) * len(spans))
        return spans[kept].start if kept < len(spans) else len(self)

    @torch.no_grad()
    def restore(self, cut: int = 0) -> None:
        """Put the source values back from position `cut` on."""
        self.parameter[cut:] = self.source[cut:]

    def begin_at(self, start: Tensor) -> None:
        """Make `start` [len(self)] the source: the parameters go there, now and whenever they are restored."""
        if start.shape != self.source.shape:
            raise ValueError(f"start has shape {tuple(start.shape)}, expected {tuple(self.source.shape)}")
        self.source = start.to(self.source).clone()
        self.restore()

    @torch.no_grad()
    def assign(self, values: Tensor) -> None:
        """Put `values` [len(self)] in."""
        self.parameter.copy_(values)

    @contextmanager
    def holding(self, values: Tensor) -> Iterator[None]:
        """Within the block the network runs with `values`; afterwards with what it had, bit for bit."""
        own = self.values.clone()
        self._aside.append(own)
        try:
            self.assign(values)
            yield
        finally:
            if any(own is held for held in self._aside):  # not so once `rest` has ended the block
                self.assign(own)
                self._aside.pop()

    def rest(self) -> None:
        """End every block of `holding`, whatever interrupted it."""
        if self._aside:
            self.assign(self._aside[0])
            self._aside.clear()


class ArenaRow(Arena):
    """The arena of one of several streams that share a network: laid out like `whole`, in memory of others' making.

    values, gradients: [len(whole)], rows of what holds those of all streams.
    """

    def __init__(self, whole: Arena, values: Tensor, gradients: Tensor) -> None:
        self.tensors, self.layers, self.source = whole.tensors, whole.layers, whole.source
        self.parameter, self.gradients = nn.Parameter(values), gradients
        self.parameter.grad = gradients
        self._aside = []

    def forget(self) -> None:
        """End every block of `holding`; another stream's values come next."""
        self._aside.clear()


def _layers(tensors: Sequence[ArenaSpan]) -> list[ArenaSpan]:
    """Neighbouring tensors of the same module, joined."""
    layers: list[ArenaSpan] = []
    for tensor in tensors:
        owner = tensor.name.rpartition(".")[0]
        if layers and layers[-1].name == owner:
            layers[-1] = ArenaSpan(owner, layers[-1].start, tensor.stop)
        else:
            layers.append(ArenaSpan(owner, tensor.start, tensor.stop))
    return layers
