"""The adapters of a fleet, lent to one stream at a time."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

W = TypeVar("W")


class Workers(Generic[W]):
    """At most `most` adapters, or what else steps streams, each made when it is first needed; who finds none free waits
    for one."""

    def __init__(self, make: Callable[[], W], most: int) -> None:
        self.make, self.most = make, most
        self._idle: queue.LifoQueue[W] = queue.LifoQueue()
        self._lock = threading.Lock()
        self._made = 0

    @contextlib.contextmanager
    def lent(self) -> Iterator[W]:
        """One of them, with whatever the last stream left in it."""
        with self._lock:
            grow = self._idle.empty() and self._made < self.most
            self._made += grow
        try:
            worker = self.make() if grow else self._idle.get()
        except BaseException:
            with self._lock:
                self._made -= grow
            raise
        try:
            yield worker
        finally:
            self._idle.put(worker)
