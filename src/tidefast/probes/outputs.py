"""Outputs of the normalisation layers: how each image's channels are distributed there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tidefast.core.mode import Mode
from tidefast.core.normalization import is_normalization
from tidefast.probes.held_statistics import is_held

MEANS, VARIANCES = "output_means", "output_variances"
"""The constants that `of_source` makes."""


@dataclass(frozen=True)
class OutputMoments:
    """Mean and biased variance of every image's channels at every layer, in the order in which the layers ran.

    >>> moments = OutputMoments([torch.tensor([[1.0, 3.0]])], [torch.tensor([[4.0, 4.0]])])
    >>> moments.distance(torch.tensor([0.0, 2.0]), torch.tensor([4.0, 1.0])).item()  # 1 for the means, 1.5 for the rest
    2.5
    """

    means: list[Tensor] = field(default_factory=list)
    """[images, channels] for each layer."""
    variances: list[Tensor] = field(default_factory=list)

    def clear(self) -> None:
        """Drop them, as those of another pass come."""
        self.means.clear()
        self.variances.clear()

    def distance(self, means: Tensor, variances: Tensor) -> Tensor:
        """Mean absolute difference from the references (flat, layer after layer), summed over layers; a scalar."""
        widths = [layer.shape[1] for layer in self.means]
        if sum(widths) != len(means):
            raise ValueError(
                f"the normalisation layers that ran have {sum(widths)} channels, those of the source data had "
                f"{len(means)}: the network must run the same layers on every batch"
            )
        terms = [
            functional.l1_loss(layer, reference.expand_as(layer))
            for layers, references in ((self.means, means), (self.variances, variances))
            for layer, reference in zip(layers, torch.split(references, widths), strict=True)
        ]
        return torch.stack(terms).sum()


class Outputs(Mode):
    """Watches the normalisation layers of a private network, and measures their outputs when asked to.

    Outside of `measuring` nothing is measured.

    >>> net = nn.Sequential(nn.BatchNorm2d(2), nn.ReLU()).eval()
    >>> outputs = Outputs.of(net)
    >>> with outputs.measuring() as moments:
    ...     _ = net(torch.tensor([[[[1.0, 3.0]], [[0.0, 0.0]]]]))
    >>> moments.means[0].round(decimals=3).tolist()
    [[2.0, 0.0]]
    """

    def __init__(self) -> None:
        self._open: tuple[OutputMoments, ...] = ()  # one for each block of `measuring` that the program is in
        self._graph = False

    @classmethod
    def of(cls, model: nn.Module) -> Outputs:
        """Those of a private model; its layers are watched from the first call on."""
        for hook in model._forward_pre_hooks.values():
            if isinstance(hook, cls):
                return hook
        layers = [module for module in model.modules() if is_normalization(module) or is_held(module)]
        if not layers:
            raise ValueError(
                "the outputs of normalisation layers are measured, and this network has no such layers; use a network "
                "with BatchNorm, LayerNorm, GroupNorm or InstanceNorm layers"
            )
        outputs = cls()
        model.register_forward_pre_hook(outputs)
        for layer in layers:
            layer.register_forward_hook(outputs._measure)
        return outputs

    @contextmanager
    def measuring(self, *, graph: bool = False) -> Iterator[OutputMoments]:
        """Within the block each pass is measured; with `graph`, so that gradients flow through the moments.

        Gives the moments, which are those of the latest pass in the block.
        """
        moments = OutputMoments()
        with self.during(_open=(*self._open, moments), _graph=graph or self._graph):
            yield moments

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Called by the network before it runs."""
        for moments in self._open:
            moments.clear()

    def _measure(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor | None:
        """Called by a layer when it has run."""
        if not self._open or not isinstance(output, Tensor):
            return None
        copy = None
        places = _places(module, output)
        if self._graph:
            copy, mean, variance = cast(tuple[Tensor, Tensor, Tensor], _MomentsInPassing.apply(output, places))  # type: ignore[no-untyped-call]  # gap in stubs
        else:
            mean, variance = _moments(output.detach(), places)
        for moments in self._open:
            moments.means.append(mean.flatten(1))
            moments.variances.append(variance.flatten(1))
        return copy


@torch.no_grad()
def of_source(outputs: Outputs, batches: Iterable[Tensor], run: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The references: moments averaged over all source images that `run` takes through the network, flat."""
    total, count = torch.zeros(()), 0
    for images in batches:
        with outputs.measuring() as moments:
            run(images)
        flat = [torch.cat([layer.mean(0) for layer in layers]) for layers in (moments.means, moments.variances)]
        of_batch = torch.stack(flat) * len(images)
        total, count = total.to(of_batch) + of_batch, count + len(images)
    means, variances = total / count
    return {MEANS: means, VARIANCES: variances}


def _places(module: nn.Module, output: Tensor) -> list[int]:
    """The dimensions that a channel of one image spans: channels come second, or last as in LayerNorm."""
    width = next((len(p) for p in module._parameters.values() if p is not None), None)
    kind = type(module).__name__.lower()
    last = output.dim() - 1
    candidates = (last, 1) if "layer" in kind or "rms" in kind else (1, last)
    channels = next((place for place in candidates if output.shape[place] == width), candidates[0])
    return [place for place in range(1, output.dim()) if place != channels]


def _moments(values: Tensor, places: list[int]) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over `places`, which are kept with length 1."""
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    if not places:
        return values, torch.zeros_like(values)
    mean = values.mean(places, keepdim=True)
    return mean, (values - mean).square_().mean(places, keepdim=True)  # on CPUs far faster than torch.var_mean


class _MomentsInPassing(torch.autograd.Function):
    """A copy of `values` with its moments.

    Networks go on in place on what a normalisation layer gives (a ReLU, a residual sum): with the copy, for what was
    measured is needed in the backward pass. That pass is one line here, where autograd's own takes several passes
    over the activations.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = _moments(values, places)
        ctx.save_for_backward(values, mean)
        ctx.count = values.numel() // mean.numel()
        return values.clone(), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        of_copy, of_mean, of_variance = gradients
        values, mean = ctx.saved_tensors
        slope = of_variance * (2.0 / ctx.count)
        constant = of_mean / ctx.count - slope * mean
        return torch.addcmul(of_copy + constant, values, slope).to(values.dtype), None
