"""Values as JSON can hold them."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """JSON has no nan and no infinity: they become null.

    >>> finite({"loss": float("nan"), "trend": (1.0, float("inf"))})
    {'loss': None, 'trend': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value
