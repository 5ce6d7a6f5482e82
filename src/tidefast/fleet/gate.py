"""A gate that many pass at a time, and that closes for a moment in which nothing changes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tidefast.fleet.interrupts import DeferredInterrupts


class Gate:
    """Many may pass at a time; while it is closed nobody does. An interrupt waits until one is through."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Not to be nested in one thread: a gate that is closing would wait for itself."""
        with DeferredInterrupts():
            with self._condition:
                while self._closed:
                    self._condition.wait()
                self._inside += 1
            try:
                yield
            finally:
                with self._condition:
                    self._inside -= 1
                    if not self._inside:
                        self._condition.notify_all()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Wait until nobody is inside, and keep everybody out."""
        with DeferredInterrupts():
            with self._condition:
                while self._closed:
                    self._condition.wait()
                self._closed = True
                while self._inside:
                    self._condition.wait()
            try:
                yield
            finally:
                with self._condition:
                    self._closed = False
                    self._condition.notify_all()
