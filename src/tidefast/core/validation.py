"""Checks of the arguments of functions: what was given, what is accepted. Fields of dataclasses declare theirs."""

from __future__ import annotations

import math
from collections.abc import Collection

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
