"""What a method computes from source data before the stream starts, kept apart so that it can be saved."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from holdfast import snapshot
from holdfast.errors import SnapshotError
from holdfast.methods.base import Method
from holdfast.methods.base import registry as methods
from holdfast.network import Network

_KIND = "preparation"


@dataclass(frozen=True)
class Preparation:
    """A method's constants for one network."""

    method: str
    network: str
    """Fingerprint of the network they were computed on."""
    tensors: dict[str, Tensor]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a file, atomically."""
        snapshot.write(path, _KIND, self.tensors, {"method": self.method, "network": self.network})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Preparation:
        """Read what `save` wrote."""
        tensors, content = snapshot.read(path, _KIND)
        return cls(content["method"], content["network"], tensors)


Source: TypeAlias = Iterable[Any] | Tensor | Preparation | str | os.PathLike[str]
"""Batches of source images (a loader, with or without labels), one tensor of them, or a saved preparation."""


def prepare(model: nn.Module, method: str | Method, source: Iterable[Any] | Tensor) -> Preparation:
    """Compute what `method` needs from source images, to be saved and used in many adapters.

    >>> from holdfast import methods
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    >>> sorted(prepare(net, methods.EATA(), torch.rand(64, 4)).tensors)
    ['fisher']
    """
    method = methods.get(method)() if isinstance(method, str) else method
    return _compute(Network(model, method.configure), method, source)


def constants_for(network: Network, method: Method, source: Source | None) -> Preparation:
    """The method's constants: computed from a loader, or read and checked."""
    need = method.needs_source
    if need is None:
        return Preparation(method.name, network.fingerprint, {}) if source is None else _unneeded(method)
    if source is None:
        raise ValueError(
            f"{type(method).__name__} needs {need}: pass source= a loader of batches, a tensor, or the path of a file "
            f"written by holdfast.prepare(model, method, loader).save(path)"
        )
    if isinstance(source, (str, os.PathLike)):
        source = Preparation.load(source)
    if not isinstance(source, Preparation):
        return _compute(network, method, source)
    if source.method != method.name:
        raise SnapshotError(f"the preparation was made for the method {source.method!r}, not {method.name!r}")
    if source.network != network.fingerprint:
        raise SnapshotError("the preparation was made on another network (or on other weights of this one)")
    device = network.arena.values.device
    return Preparation(source.method, source.network, {name: t.to(device) for name, t in source.tensors.items()})


def _unneeded(method: Method) -> Preparation:
    raise ValueError(f"{type(method).__name__} uses no source data; leave source= out")


def _compute(network: Network, method: Method, source: Iterable[Any] | Tensor) -> Preparation:
    if method.needs_source is None:
        return _unneeded(method)
    with torch.inference_mode(False), torch.enable_grad():
        tensors = method.prepare(network, _batches(network, source))
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"the source images gave a non-finite {name!r} for {type(method).__name__}; check them")
    return Preparation(method.name, network.fingerprint, tensors)


def _batches(network: Network, source: Iterable[Any] | Tensor) -> Iterator[Tensor]:
    """Image batches of a loader that yields images, or tuples that start with them."""
    empty = True
    for item in torch.split(source, 64) if isinstance(source, Tensor) else source:
        images = item[0] if isinstance(item, (tuple, list)) else item
        if not isinstance(images, Tensor) or not images.is_floating_point():
            got = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise TypeError(f"source= must yield batches of float images (alone or first in a tuple), got {got}")
        if len(images) > 1 or (len(images) and not network.statistics.needs_batch):
            empty = False
            yield images.to(device=network.device, dtype=network.dtype)
    if empty:
        raise ValueError("source= yielded no images")
