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


class Termination(SystemExit):
    """SIGTERM came: all that was started is to end at once."""


@contextlib.contextmanager
def termination() -> Iterator[None]:
    """Within it, the first SIGTERM is raised as a Termination; outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what follows is to be done to its end
        raise Termination(128 + number)

    former = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


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
