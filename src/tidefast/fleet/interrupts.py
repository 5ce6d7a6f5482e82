"""Ctrl-C and the books of a fleet: it waits while locks are taken and streams change hands, and comes in steps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class DeferredInterrupts:
    """Within the block SIGINT waits for the end of it, or for a block of `allowed` in it; a second one does not wait.

    Python runs handlers of signals in the main thread only, so that nothing has to be done in others.

    >>> usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    >>> done = []
    >>> try:
    ...     with DeferredInterrupts():
    ...         signal.raise_signal(signal.SIGINT)
    ...         done.append("all of it")
    ... except KeyboardInterrupt:
    ...     done.append("interrupted")
    >>> done
    ['all of it', 'interrupted']
    >>> _ = signal.signal(signal.SIGINT, usual)
    """

    def __init__(self) -> None:
        self._outer: Any = None
        self._waiting: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> DeferredInterrupts:
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._outer = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._outer is not None:
            signal.signal(signal.SIGINT, self._outer)
            self._deliver()

    def _note(self, number: int, frame: FrameType | None) -> None:
        former, self._waiting = self._waiting, (number, frame)
        if former is not None:
            self._deliver()

    def _deliver(self) -> None:
        if self._waiting is not None:
            (number, frame), self._waiting = self._waiting, None
            self._outer(number, frame)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Within this block they come at once."""
        if self._outer is None:
            yield
            return
        inner = signal.getsignal(signal.SIGINT)
        try:
            signal.signal(signal.SIGINT, self._outer)
            self._deliver()
            yield
        finally:
            signal.signal(signal.SIGINT, inner)
