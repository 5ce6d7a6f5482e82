"""Streams to files and back, beside the steps."""

from __future__ import annotations

import threading
from pathlib import Path

from tidefast.adapter import Adapter
from tidefast.core.resumption import Resumption
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

    def take_over(self, path: Path, target: Path, settings: Resumption) -> tuple[int, bool]:
        """How many steps the stream in a file has taken, after checking all of the file, and whether it goes on with
        other settings than it was saved with: then it is at `target`, with these."""
        with self._lock:
            try:
                replaced = self._adapter.load(path, settings=settings)
                if replaced:
                    self._adapter.save(target, durable=False)
                return self._adapter.step, replaced
            finally:
                self._adapter.reset()
