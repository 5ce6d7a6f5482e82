"""Optimisers by name, and their state as plain tensors and numbers, so that it can be saved without pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from tidefast.core.registry import Registry
from tidefast.core.specification import Given, Specification
from tidefast.errors import SpecificationError

OptimizerFactory: TypeAlias = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

registry: Registry[torch.optim.Optimizer] = Registry("optimizer", torch.optim.Optimizer)
registry.adopt(
    {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
)


def factory(given: Given | OptimizerFactory) -> OptimizerFactory:
    """What makes the optimiser: a callable on a list of parameters, or a class of torch.optim by name.

    >>> factory("adam:lr=1e-3")([nn.Parameter(torch.zeros(3))]).defaults["lr"]
    0.001
    >>> factory("lbfgs:lr=1")
    Traceback (most recent call last):
    ...
    tidefast.errors.SpecificationError: optimizer 'lbfgs' cannot take a step: ...
    """
    if not isinstance(given, (str, Mapping, Specification)):
        if not callable(given):
            raise SpecificationError(
                "optimizer must be a name such as 'adam:lr=1e-3', a mapping with a name, or a callable that takes a "
                f"list of parameters, got {given!r}"
            )
        return given
    make = registry.bound(given, positional=1)
    trial = nn.Parameter(torch.zeros(1))
    trial.grad = torch.zeros(1)
    try:
        optimizer = make([trial])
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is no torch.optim.Optimizer")
        optimizer.step()
    except Exception as error:  # whatever a class of torch, or somebody else's, says of its options
        name = Specification.parse(given).name
        raise SpecificationError(f"optimizer {name!r} cannot take a step: {error}") from error
    return make


def made(make: OptimizerFactory, parameter: nn.Parameter) -> torch.optim.Optimizer:
    """The optimiser over the adapted parameters that a caller's factory makes."""
    optimizer = make([parameter])
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "optimizer must be a callable that takes a list of parameters and returns a torch.optim.Optimizer, "
            f"such as functools.partial(torch.optim.SGD, lr=1e-3); it returned {type(optimizer).__name__}"
        )
    return optimizer


def flatten(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimiser over one parameter: its tensors by name, and everything else as JSON values."""
    saved = optimizer.state_dict()
    return named(saved["state"].get(0, {}), {k: v for k, v in saved["param_groups"][0].items() if k != "params"})


def named(moments: Mapping[str, Any], group: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Moments and settings of an optimiser: tensors by name, and everything else as JSON values.

    >>> named({"step": 3}, {"lr": 0.1})
    ({}, {'state.step': 3, 'group.lr': 0.1})
    """
    values = {**{f"state.{key}": v for key, v in moments.items()}, **{f"group.{key}": v for key, v in group.items()}}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in values.items() if name not in tensors}


def unnamed(
    tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], initial: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inverse of `named`, for an optimiser whose settings are called, and were initially, as in `initial`."""
    values = {**numbers, **tensors}
    moments = {key.removeprefix("state."): value for key, value in values.items() if key.startswith("state.")}
    group = {key: values.get(f"group.{key}", old) for key, old in initial.items()}
    # JSON has no tuples
    return moments, {key: tuple(v) if isinstance(initial[key], tuple) else v for key, v in group.items()}


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
    moments, group = unnamed(tensors, numbers, optimizer.state_dict()["param_groups"][0])
    optimizer.load_state_dict({"state": {0: moments} if moments else {}, "param_groups": [group]})
