"""Whether numbers are finite, and what is unusable when they are not."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class UnusableError(Exception):
    """A batch from which nothing may reach the parameters; says why."""


class Checks:
    """What must be finite, reduced on the device where it is, to be judged in one fetch along with other numbers.

    A host that asks a device for a number waits until all it was told to do is done: the fewer fetches the better.

    >>> checks = Checks()
    >>> checks.add("non-finite images", torch.ones(3))
    >>> checks.fetch(torch.tensor(0.5))
    [0.5]
    >>> checks.add("non-finite logits", torch.tensor([1.0, torch.nan]))
    >>> checks.fetch()
    Traceback (most recent call last):
    tidefast.core.finite.UnusableError: non-finite logits
    """

    def __init__(self) -> None:
        self._pending: list[tuple[str, Tensor]] = []

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, reason: str, values: Tensor) -> None:
        """Judge `values`, as they are now, in the next fetch."""
        self._pending += [(reason, scalar) for scalar in _extremes(values)]

    def fetch(self, *scalars: Tensor) -> list[float]:
        """The numbers in `scalars`; raises `UnusableError` with the reason of the first values that are not finite."""
        pending, self._pending = self._pending, []
        if not pending and not scalars:
            return []
        numbers: list[float] = torch.stack([*(scalar for _, scalar in pending), *scalars]).tolist()
        for (reason, _), number in zip(pending, numbers, strict=False):
            if not math.isfinite(number):
                raise UnusableError(reason)
        return numbers[len(pending) :]


def all_finite(values: Tensor) -> bool:
    """Whether all values are finite.

    >>> all_finite(torch.ones(3)), all_finite(torch.tensor([1.0, torch.nan])), all_finite(torch.ones(0))
    (True, False, True)
    """
    checks = Checks()
    checks.add("", values)
    try:
        checks.fetch()
    except UnusableError:
        return False
    return True


def _extremes(values: Tensor) -> list[Tensor]:
    """Scalars that are finite when all values are: least and greatest, which are nan where any is."""
    values = values.detach()
    if values.dim() == 0:
        return [values]
    return [values.amin(), values.amax()] if values.numel() else []
