"""Loops compiled by Numba: compiled at the first call, kept on disk, free of the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Decorator for a loop over arrays; plain IEEE arithmetic, so results do not depend on the compiler's mood."""
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no writable place for the cache: compile anew in each process
        return cast(F, numba.njit(nogil=True)(function))
