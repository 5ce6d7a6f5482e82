"""The optimiser's state as plain tensors and numbers, so that it can be saved without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def flatten(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimiser over one parameter: its tensors by name, and everything else as JSON values."""
    saved = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for key, value in saved["state"].get(0, {}).items():
        (tensors if isinstance(value, Tensor) else numbers)[f"state.{key}"] = value
    for key, value in saved["param_groups"][0].items():
        if key != "params":
            (tensors if isinstance(value, Tensor) else numbers)[f"group.{key}"] = value
    return tensors, numbers


def misfit(parameter: nn.Parameter, tensors: Mapping[str, Tensor]) -> str | None:
    """Why saved tensors cannot belong to this optimiser; None when they can."""
    for key, value in tensors.items():
        if value.shape not in (parameter.shape, torch.Size([])):
            return f"optimiser state {key!r} has shape {tuple(value.shape)}, expected {tuple(parameter.shape)}"
        if not bool(torch.isfinite(value).all()):
            return f"optimiser state {key!r} is not finite"
    return None


def restore(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Inverse of `flatten`."""
    values = {**numbers, **tensors}
    state = {key.removeprefix("state."): value for key, value in values.items() if key.startswith("state.")}
    saved = optimizer.state_dict()
    group = saved["param_groups"][0]
    for key, old in group.items():
        new = values.get(f"group.{key}", old)
        group[key] = tuple(new) if isinstance(old, tuple) else new  # JSON has no tuples
    optimizer.load_state_dict({"state": {0: state} if state else {}, "param_groups": [group]})
