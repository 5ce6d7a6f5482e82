"""Checks of the arguments of functions: what was given, what is accepted. Fields of dataclasses declare theirs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from tidefast.core.constraints import Choice, Number


def require_number(name: str, value: float, low: float = -math.inf, high: float = math.inf) -> None:
    """Raise unless `value` is a finite number in [low, high].

    >>> require_number("rho", 0.05, 0.0)
    >>> require_number("momentum", 1.5, 0.0, 1.0)
    Traceback (most recent call last):
    ...
    ValueError: momentum must lie in [0.0, 1.0], got 1.5
    """
    Number(whole=False, low=low, high=high).require(name, value)


def require_count(name: str, value: int, low: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `low`.

    >>> require_count("every", 0)
    Traceback (most recent call last):
    ...
    ValueError: every must be a whole number of at least 1, got 0
    """
    Number(whole=True, low=low).require(name, value)


def require_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise unless `value` is one of `choices`.

    >>> require_choice("unit", "block", ("layer", "tensor"))
    Traceback (most recent call last):
    ...
    ValueError: unit must be one of 'layer', 'tensor', got 'block'
    """
    Choice(tuple(choices)).require(name, value)


def require_device(name: str) -> torch.device:
    """The device called so; raise unless it is there.

    >>> require_device("cpu")
    device(type='cpu')
    >>> require_device("gpu")
    Traceback (most recent call last):
    ...
    ValueError: a device is called cpu, cuda, cuda:1, mps or the like, got 'gpu'
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"a device is called cpu, cuda, cuda:1, mps or the like, got {name!r}") from error
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for a device
        raise ValueError(f"{name} is not available: {str(error).partition(chr(10))[0]}") from error
    return device


def require_classes(name: str, values: Tensor | Sequence[int], count: int, num_classes: int) -> Tensor:
    """The same as a tensor [count]; raise unless they are so many whole numbers in [0, num_classes).

    >>> require_classes("labels", [1, 2], 3, 10)
    Traceback (most recent call last):
    ...
    ValueError: labels must be 3 classes, one for each image, got shape (2,)
    """
    classes = torch.as_tensor(values)
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise TypeError(f"{name} must be whole numbers, got {classes.dtype}")
    if classes.shape != (count,):
        raise ValueError(f"{name} must be {count} classes, one for each image, got shape {tuple(classes.shape)}")
    if int(classes.min()) < 0 or int(classes.max()) >= num_classes:
        raise ValueError(f"{name} must lie in [0, {num_classes - 1}], got {int(classes.min())} to {int(classes.max())}")
    return classes
