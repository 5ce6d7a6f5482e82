"""Whether numbers are finite, and what is unusable when they are not."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def all_finite(values: Tensor) -> bool:
    """Whether all values are finite; a finite sum proves it in one cheap pass.

    >>> all_finite(torch.ones(3)), all_finite(torch.tensor([1.0, torch.nan]))
    (True, False)
    """
    values = values.detach()
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


class UnusableError(Exception):
    """A batch from which nothing may reach the parameters; says why."""


def require_finite(what: str, values: Tensor) -> None:
    """Raise `UnusableError` where values are not finite."""
    if not all_finite(values):
        raise UnusableError(f"non-finite {what}")
