"""A log that says the same thing a few times, and then how often it did not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LOGGERS = ("tidefast", "tidefast.serve", "uvicorn.error", "asyncio")
"""Whose lines somebody from outside can cause."""


class RepeatedLines(logging.Filter):
    """Lets a line pass `most` times in `seconds`, whatever is filled in; the next one says how many were left out.

    >>> now = [0.0]
    >>> lines = RepeatedLines(most=2, seconds=60.0, clock=lambda: now[0])
    >>> def line(): return logging.LogRecord("x", logging.WARNING, "", 0, "refused %s", ("you",), None)
    >>> [lines.filter(line()) for _ in range(5)]
    [True, True, False, False, False]
    >>> now[0] = 61.0
    >>> last = line()
    >>> lines.filter(last), last.getMessage()
    (True, 'refused you (3 more of these in the last 61 s)')
    """

    def __init__(self, most: int = 10, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most, self._seconds, self._clock = most, seconds, clock
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}  # when it began, and how often since

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if record.levelno < logging.WARNING:
            return True
        now, key = self._clock(), (record.name, record.levelno, str(record.msg)[:200])
        began, count = self._seen.get(key, (now, 0))
        if now - began > self._seconds:
            left_out = count - self._most
            if left_out > 0:
                record.msg = f"{record.getMessage()} ({left_out} more of these in the last {now - began:.0f} s)"
                record.args = ()
            began, count = now, 0
        if len(self._seen) > 1000:
            self._seen.clear()
        self._seen[key] = (began, count + 1)
        return count < self._most


def quieten() -> None:
    """Bound what this process writes to its log."""
    lines = RepeatedLines()
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(there, RepeatedLines) for there in logger.filters):
            logger.addFilter(lines)
