"""Streams to files and back, beside the steps."""

from __future__ import annotations

import threading
from pathlib import Path

from tidefast.adapter import Adapter
from tidefast.core.session import Session


class Scribe:
    """Reads and writes files of streams with an adapter of its own, so that no step waits for a disk."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter, self._lock = adapter, threading.Lock()

    def write(self, session: Session, path: Path) -> None:
        """Write a session, which stays as it is."""
        with self._lock:
            self._adapter.enter(session)
            try:
                self._adapter.save(path, durable=False)
            finally:
                self._adapter.reset()

    def step_in(self, path: Path) -> int:
        """How many steps the stream in a file has taken, after checking all of the file."""
        with self._lock:
            try:
                self._adapter.load(path)
                return self._adapter.step
            finally:
                self._adapter.reset()
