"""Ctrl-C as a wish that is looked at between two pieces of work, instead of an exception in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from types import FrameType


class Interruption:
    """Counts how often the user (or the system, by SIGTERM) has asked to end."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


@contextlib.contextmanager
def noticed() -> Iterator[Interruption]:
    """Within it, SIGINT and SIGTERM only count; outside the main thread, where that is impossible, nothing changes."""
    wish = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    former = {number: signal.signal(number, wish) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wish
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Within it, SIGINT waits; a process started here never receives it at all."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # started later, it would let SIGINT through again
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
