"""What a method computes from source data before the stream starts, kept apart so that it can be saved."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from tidefast.core import snapshot
from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.core.specification import Given
from tidefast.errors import SnapshotError
from tidefast.methods.base import Method
from tidefast.methods.base import registry as methods
from tidefast.resets.base import Reset
from tidefast.resets.base import registry as resets
from tidefast.resets.never import Never

_KIND = "preparation"


@dataclass(frozen=True)
class Preparation:
    """The constants of a method, and of a reset policy that needs any, for one network."""

    made_for: dict[str, Any]
    """Name and settings of each that they were made for."""
    network: str
    """Fingerprint of the network they were computed on."""
    tensors: dict[str, Tensor]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a file, atomically."""
        snapshot.write(path, _KIND, self.tensors, {"made_for": self.made_for, "network": self.network})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Preparation:
        """Read what `save` wrote."""
        tensors, content = snapshot.read(path, _KIND)
        if "made_for" not in content:
            raise SnapshotError(f"{path} was written by an earlier version of tidefast: prepare it again")
        return cls(content["made_for"], content["network"], tensors)


SourceInput: TypeAlias = Iterable[Any] | Tensor | Preparation | str | os.PathLike[str]
"""Batches of source images (a loader, with or without labels), tensors of them, or a saved preparation."""


def prepare(
    model: nn.Module,
    method: Given | Method,
    source: Iterable[Any] | Tensor,
    *,
    reset: Given | Reset | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Preparation:
    """Compute what `method` (and `reset`, where it needs any) takes from source data, to be used in many adapters.

    `cache`: a file that is read when it is there, and else written; one made for something else is an error.

    >>> from tidefast import methods
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    >>> sorted(prepare(net, methods.EATA(), torch.rand(64, 4)).tensors)
    ['fisher']
    """
    method = methods.make(method)
    policy: Reset = Never() if reset is None else resets.make(reset)
    parts = taking(method, policy)
    if not parts:
        raise _unneeded(method)
    network = configured(model, method, policy)
    if cache is not None and Path(cache).exists():
        return constants_for(network, method, policy, cache)
    preparation = _compute(network, parts, source)
    if cache is not None:
        preparation.save(cache)
    return preparation


def configured(model: nn.Module, method: Method, policy: Reset) -> Network:
    """A private copy of the model as the method and the policies want it."""
    own = method.own_reset()

    def configure(module: nn.Module, statistics: Any) -> Any:
        names = method.configure(module, statistics)
        for rule in [policy] if own is None else [own, policy]:
            rule.configure(module)
        return names

    return Network(model, configure)


def needing(method: Method, policy: Reset) -> dict[str, Method | Reset]:
    """Those of the two that need source data, by the name of their place."""
    parts: dict[str, Method | Reset] = {"method": method, "reset": policy}
    return {place: part for place, part in parts.items() if part.needs_source is not None}


def taking(method: Method, policy: Reset) -> dict[str, Method | Reset]:
    """Those of the two to which source data is of use, by the name of their place."""
    parts: dict[str, Method | Reset] = {"method": method, "reset": policy}
    return {place: part for place, part in parts.items() if part.takes_source}


def constants_for(network: Network, method: Method, policy: Reset, source: SourceInput | None) -> Preparation:
    """The constants of the method and the policy: computed from a loader, or read and checked."""
    parts, needed = taking(method, policy), needing(method, policy)
    if source is not None and not parts:
        raise _unneeded(method)
    if source is None and not needed:
        return Preparation({}, network.fingerprint, {})
    if source is None:
        needs = ", and ".join(f"{type(part).__name__} needs {part.needs_source}" for part in needed.values())
        raise ValueError(
            f"{needs}: pass source= a loader of batches, a tensor, or the path of a file written by "
            "tidefast.prepare(model, method, loader).save(path)"
        )
    if isinstance(source, (str, os.PathLike)):
        source = Preparation.load(source)
    if not isinstance(source, Preparation):
        return _compute(network, parts, source)
    for place, part in parts.items():
        stored, ours = source.made_for.get(place), _made_for(part)
        if stored is None and place not in needed:
            continue
        if stored is None or stored["name"] != ours["name"]:
            theirs = "none" if stored is None else repr(stored["name"])
            raise SnapshotError(f"the preparation was made for the {place} {theirs}, not {ours['name']!r}")
        if stored != ours:
            raise SnapshotError(f"the preparation was made with other settings: {stored}, here {ours}")
    if source.network != network.fingerprint:
        raise SnapshotError("the preparation was made on another network (or on other weights of this one)")
    device = network.arena.values.device
    moved = {name: tensor.to(device) for name, tensor in source.tensors.items()}
    return Preparation(source.made_for, source.network, moved)


def _made_for(part: Method | Reset) -> dict[str, Any]:
    settings = {name: getattr(part, name) for name in part.prepared_with}
    return {"name": part.name, **{name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()}}


def _unneeded(method: Method) -> ValueError:
    return ValueError(f"{type(method).__name__} uses no source data; leave source= out")


def _compute(network: Network, parts: dict[str, Method | Reset], source: Iterable[Any] | Tensor) -> Preparation:
    tensors: dict[str, Tensor] = {}
    shared = source if len(parts) == 1 or isinstance(source, Tensor) else list(source)  # each goes over all of it
    for part in reversed(parts.values()):  # where both compute the same, the method's stays
        with torch.inference_mode(False), torch.enable_grad():
            tensors |= part.prepare(network, SourceData(network, shared, type(part).__name__))
        network.arena.restore()
        network.arena.zero_gradients()
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"the source data gave a non-finite {name!r}; check it")
    made_for = {place: _made_for(part) for place, part in parts.items()}
    return Preparation(made_for, network.fingerprint, {name: tensor.detach() for name, tensor in tensors.items()})
