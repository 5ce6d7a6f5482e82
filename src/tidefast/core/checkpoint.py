"""Sessions in files: written, read back, and checked to belong where they go on."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import tidefast
from tidefast.core import optim, snapshot
from tidefast.core.finite import all_finite
from tidefast.core.network import Network
from tidefast.core.session import Session, SlidingWindow
from tidefast.core.state import State, Value
from tidefast.errors import SnapshotError

_KIND = "adapter"


@dataclass(frozen=True)
class Origin:
    """What a session must come from to go on in an adapter."""

    belongs: Mapping[str, Any]
    """Network, method, policy and the rest by what tells them from others; see `belongings`."""
    parameter: nn.Parameter
    """The adapted parameters."""
    group: Mapping[str, Any]
    """The optimiser's settings at the start."""
    num_classes: int | None
    declare: Callable[[int], dict[str, State]]
    """The state of a stream that begins, for a number of classes."""


def belongings(
    network: Network, method: Any, policy: Any, optimizer: torch.optim.Optimizer, window: int
) -> dict[str, Any]:
    """What a file must match to be loaded, as JSON values."""
    return {
        "network": network.fingerprint,
        "parameters": [span.name for span in network.arena.tensors],
        "method": _describe(method),
        "reset": _describe(policy),
        "optimizer": type(optimizer).__name__,
        "window": window,
        "constants": snapshot.digest_of(network.constants),
    }


def write(path: str | os.PathLike[str], session: Session, belongs: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write a session; the file is replaced whole or not at all."""
    tensors = {"arena": session.values}
    numbers: dict[str, dict[str, Value]] = {}
    for owner, state in session.states.items():
        numbers[owner] = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
        tensors.update({f"{owner}.{name}": v for name, v in state.items() if isinstance(v, Tensor)})
    moments, settings = optim.named(session.moments, session.group)
    tensors.update({f"optimizer.{name}": value for name, value in moments.items()})
    if session.recent is not None:
        tensors["recent"] = session.recent
    if session.sliding is not None:
        tensors.update({f"sliding.{name}": tensor for name, tensor in session.sliding._asdict().items()})
    content = {
        "belongs": belongs,
        "tidefast": tidefast.__version__,
        "num_classes": session.num_classes,
        "step": session.step,
        "seed": session.seed,
        "fresh": session.fresh,
        "nonfinite": session.nonfinite,
        "optimizer": settings,
        "began": optim.named({}, session.began)[1],
        "state": numbers,
    }
    snapshot.write(path, _KIND, tensors, content, durable=durable)


def read(path: str | os.PathLike[str], origin: Origin) -> Session:
    """A session that `write` wrote, checked whole; whatever is wrong with it is a SnapshotError."""
    tensors, content = snapshot.read(path, _KIND)
    try:
        for what, ours in origin.belongs.items():
            if content["belongs"].get(what) != ours:
                raise SnapshotError(_foreign(path, what, content["belongs"].get(what), ours))
        return _fitted(path, tensors, content, origin)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, SnapshotError):
            raise
        raise SnapshotError(f"{path} is malformed: {error!r}") from error


def _fitted(path: object, tensors: Mapping[str, Tensor], content: Mapping[str, Any], origin: Origin) -> Session:
    """The session in a file that belongs here."""
    num_classes = content["num_classes"]
    if None not in (num_classes, origin.num_classes) and num_classes != origin.num_classes:
        raise SnapshotError(f"{path} is for {num_classes} classes, this adapter for {origin.num_classes}")
    # Where an optimiser counts its steps in a tensor, torch keeps that one on the host.
    counts = {name for name, tensor in tensors.items() if name.startswith("optimizer.") and tensor.dim() == 0}
    device = origin.parameter.device
    moved = {name: tensor if name in counts else tensor.to(device) for name, tensor in tensors.items()}
    values = moved.pop("arena")
    recent = moved.pop("recent", None)
    sliding: SlidingWindow | None = None
    if "sliding.statistics" in moved:  # older files have none
        sliding = SlidingWindow(moved.pop("sliding.statistics"), moved.pop("sliding.logits"))
    moments = {n.removeprefix("optimizer."): moved.pop(n) for n in list(moved) if n.startswith("optimizer.")}
    states = {} if num_classes is None else origin.declare(num_classes)
    stored: dict[str, dict[str, Value]] = {owner: dict(content["state"][owner]) for owner in states}
    for name, tensor in moved.items():
        owner, _, leaf = name.partition(".")
        stored[owner][leaf] = tensor
    problem = _parameter_problem(values, origin.parameter) or optim.misfit(origin.parameter, moments)
    for owner, state in states.items():
        for name in [*state, *(stored[owner].keys() - state.keys())]:
            wrong = state.misfit(name, stored[owner].get(name))
            problem = problem or (wrong and f"{owner}.{name} {wrong}")
    if problem:
        raise SnapshotError(f"{path} does not fit this adapter: {problem}")
    for owner, state in states.items():
        state.update(stored[owner])
    step, seed, fresh, nonfinite = (int(content[name]) for name in ("step", "seed", "fresh", "nonfinite"))
    settings = dict(content["optimizer"])
    state_of, group = optim.unnamed(moments, settings, origin.group)
    _, began = optim.unnamed({}, dict(content.get("began", settings)), origin.group)  # older files have the latest only
    return Session(
        values, state_of, group, began, states, num_classes, step, seed, None, nonfinite, recent, fresh, sliding
    )


def configuration(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What an adapter must be given, beside model and source data, to go on from a file: what the file says of itself.

    A part that is somebody's callable cannot be told from its name alone.
    """
    belongs = snapshot.read(path, _KIND)[1]["belongs"]
    return {
        "method": _specification(belongs["method"]),
        "reset": _specification(belongs["reset"]),
        "optimizer": belongs["optimizer"].lower(),
        "window": belongs["window"],
    }


def _specification(described: Mapping[str, Any]) -> dict[str, Any]:
    """What `_describe` told, as a name with options."""
    return {"name": described["name"], **{name: _option(v) for name, v in described["hyperparameters"].items()}}


def _option(value: Any) -> Any:
    if isinstance(value, dict):
        return _specification(value)
    return tuple(value) if isinstance(value, list) else value


def _describe(configured: Any) -> dict[str, Any]:
    """Name and hyperparameters as JSON values; a callable by its name."""
    values: dict[str, Any] = {}
    for item in (item for item in dataclasses.fields(configured) if item.init):
        value = getattr(configured, item.name)
        if dataclasses.is_dataclass(value) and hasattr(value, "name"):  # a base method, a part of a policy
            values[item.name] = _describe(value)
        else:
            plain = isinstance(value, (int, float, str, bool, type(None)))
            values[item.name] = value if plain else list(value) if isinstance(value, tuple) else _name_of(value)
    return {"name": configured.name or _name_of(type(configured)), "hyperparameters": values}


def _name_of(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _parameter_problem(stored: Tensor, expected: Tensor) -> str | None:
    if stored.shape != expected.shape or stored.dtype != expected.dtype:
        described = (f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (stored, expected))
        return "its parameters are {}, expected {}".format(*described)
    return None if all_finite(stored) else "its parameters are not finite"


def _foreign(path: object, what: str, stored: Any, ours: Any) -> str:
    """Which part of a snapshot belongs to something else."""
    if what == "network":
        return f"{path} belongs to another network (or to other weights of this one)"
    if what == "constants":
        return f"{path} was saved with other source images (or canaries), or with none where some are given here"
    if isinstance(stored, dict) and isinstance(ours, dict) and stored.get("name") == ours["name"]:
        theirs = stored.get("hyperparameters", {})
        differing = [
            f"{k}={theirs.get(k)!r} (here {v!r})" for k, v in ours["hyperparameters"].items() if theirs.get(k) != v
        ]
        return f"{path} was saved with other settings of {what} {ours['name']!r}: {', '.join(differing)}"
    if isinstance(ours, dict):
        stored, ours = (stored or {}).get("name"), ours["name"]
    return f"{path} was saved with {what} {stored!r}, this adapter has {ours!r}"
