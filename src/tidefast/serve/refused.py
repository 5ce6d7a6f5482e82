"""Why a request is not answered with a prediction."""

from __future__ import annotations

from typing import Literal

from tidefast.errors import TidefastError

Reason = Literal[
    "busy",
    "damaged",
    "failed",
    "foreign",
    "malformed",
    "memory",
    "moving",
    "rate",
    "stopping",
    "storage",
    "streams",
    "timeout",
    "too_large",
    "unauthorized",
    "unfit",
    "unknown",
    "unsupported",
]
"""Why, in one word, as the metrics count it."""


class RefusedError(TidefastError):
    """A request that is refused, with the reason as one word and as a sentence."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason
