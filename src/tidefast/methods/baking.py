"""Taking a network home: what an adapter answers with, as an ordinary module that needs nothing of this package."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tidefast.core.network import Network, logits_of
from tidefast.probes import held_statistics

_OURS = tuple(f"tidefast.{part}." for part in ("core", "augment", "probes", "resets", "methods"))
"""Where the parts of methods and policies live; the bundled networks have classes of their own, as any package's."""
_TOLERANCE = 1e-3

Moments = tuple[Tensor, Tensor]
"""Mean and variance [channels]."""


@dataclass(frozen=True)
class _Pass:
    """One pass of the network: its logits, the parameters that it ran with, and what its layers normalised with."""

    logits: Tensor
    values: Tensor
    statistics: dict[str, tuple[Moments, int]]
    """By the name of a BatchNorm layer; with the number of dimensions of its input."""


def baked(network: Network, answer: Callable[[], Tensor], images: Tensor, method: str) -> nn.Module:
    """The network as it is when `answer` gives logits for `images`, with the statistics of that pass for good.

    Weights are copies. A ValueError when no pass of the network gives these logits: then there is more to the method's
    answers than a network.
    """
    with _watched(network) as passes:
        logits = answer()
    alike = [one for one in passes if one.logits.shape == logits.shape]
    if not alike:
        raise _inseparable(method)
    chosen = min(alike, key=lambda one: float((one.logits - logits).abs().max()))
    with network.arena.holding(chosen.values):
        module = copy.deepcopy(network.module)
    for name, (moments, rank) in chosen.statistics.items():
        _fix(module, name, moments, rank)
    _strip(module.requires_grad_(False))
    again = logits_of(module(images))
    if not torch.allclose(again, logits, rtol=_TOLERANCE, atol=_TOLERANCE * float(logits.abs().max())):
        raise _inseparable(method)
    return module


def _inseparable(method: str) -> ValueError:
    return ValueError(
        f"{method} answers with more than one pass of its network, which no ordinary module does: adapt with a method "
        "that answers with its network, such as 'roid' or 'eta', and bake that"
    )


@contextmanager
def _watched(network: Network) -> Iterator[list[_Pass]]:
    """The passes within the block; a compiled network runs as it was before it was compiled."""
    passes: list[_Pass] = []
    statistics: dict[str, tuple[Moments, int]] = {}

    def note(name: str, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        statistics[name] = _moments(layer, inputs[0]), inputs[0].dim()

    def end(module: nn.Module, inputs: Any, output: Any) -> None:
        passes.append(_Pass(logits_of(output).detach().clone(), network.arena.values.clone(), dict(statistics)))
        statistics.clear()

    module, compiled = network.module, network.model
    with ExitStack() as stack:
        for name, layer in module.named_modules():
            if isinstance(layer, _BatchNorm) or held_statistics.is_held(layer):
                stack.enter_context(layer.register_forward_hook(functools.partial(note, name)))
        stack.enter_context(module.register_forward_hook(end))
        network.model = module
        try:
            yield passes
        finally:
            network.model = compiled


def _moments(layer: Any, inputs: Tensor) -> Moments:
    """What a layer has just normalised with."""
    if held_statistics.is_held(layer):
        mean, variance = layer.in_use(inputs)
        return mean.detach().clone(), variance.detach().clone()
    if layer.running_mean is not None and layer.running_var is not None:
        return layer.running_mean.clone(), layer.running_var.clone()
    dimensions = [0, *range(2, inputs.dim())]
    variance, mean = torch.var_mean(inputs.detach(), dimensions, correction=0)
    return mean, variance


def _fix(module: nn.Module, name: str, moments: Moments, rank: int) -> None:
    """Give a BatchNorm layer statistics for good."""
    layer: Any = module.get_submodule(name)
    if held_statistics.is_held(layer):
        kind = {4: nn.BatchNorm2d, 5: nn.BatchNorm3d}.get(rank, nn.BatchNorm1d)
        fresh = kind(len(moments[0]), eps=layer.eps, affine=layer.weight is not None)
        fresh.weight, fresh.bias = layer.weight, layer.bias
        module.set_submodule(name, fresh.eval())
        layer = fresh
    layer.running_mean, layer.running_var = moments
    layer.track_running_stats = True
    if layer.num_batches_tracked is None:
        layer.num_batches_tracked = torch.tensor(0, device=moments[0].device)


def _strip(module: nn.Module) -> None:
    """Take away all that is this package's and not the network's: hooks, and heads of a loss."""
    for layer in list(module.modules()):
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            hooks = getattr(layer, name)
            for key in [key for key, hook in hooks.items() if _is_ours(hook)]:
                del hooks[key]
        if type(layer) is nn.Linear:  # nothing hangs below one but what a method attached
            layer._modules.clear()
    left = sorted({type(part).__name__ for part in _parts(module) if _is_ours(part)})
    if left:
        raise ValueError(f"parts of the method cannot be separated from the network: {', '.join(left)}")


def _parts(module: nn.Module) -> Iterator[object]:
    for layer in module.modules():
        yield layer
        yield from vars(layer).values()


def _is_ours(part: Any) -> bool:
    """Whether an object is a part of a method or a policy."""
    part = part.func if isinstance(part, functools.partial) else part
    owner = getattr(part, "__self__", part)
    home = getattr(owner, "__module__", None) or type(owner).__module__
    return f"{home}.".startswith(_OURS)
