"""Threads that decode images, so that a large one keeps no other request waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tidefast.serve.threads import started_pool

T = TypeVar("T")
_SMALL = 64 * 1024  # bytes that are looked at faster than a thread is woken


class Decoders:
    """Two threads; to be used in one event loop."""

    def __init__(self) -> None:
        self._pool = started_pool(2, "tidefast-decode")

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Run a decoder of so many bytes; in a thread unless the way there would cost more."""
        if size <= _SMALL:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown()
