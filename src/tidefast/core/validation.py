"""Checks of hyperparameters at construction: what was given, what is accepted."""

from __future__ import annotations

import math
from collections.abc import Collection


def require_number(
    name: str,
    value: float,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    low_open: bool = False,
) -> None:
    """Raise unless `value` is a finite number in [low, high], or (low, high] with `low_open`.

    >>> require_number("rho", 0.05, 0.0)
    >>> require_number("momentum", 1.5, 0.0, 1.0)
    Traceback (most recent call last):
    ...
    ValueError: momentum must lie in [0.0, 1.0], got 1.5
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    above = value > low if low_open else value >= low
    if not (math.isfinite(value) and above and value <= high):
        raise ValueError(f"{name} must lie in {'(' if low_open else '['}{low}, {high}], got {value!r}")


def require_count(name: str, value: int, low: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `low`.

    >>> require_count("every", 0)
    Traceback (most recent call last):
    ...
    ValueError: every must be a whole number of at least 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}, got {value!r}")


def require_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise unless `value` is one of `choices`.

    >>> require_choice("unit", "block", ("layer", "tensor"))
    Traceback (most recent call last):
    ...
    ValueError: unit must be one of 'layer', 'tensor', got 'block'
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
