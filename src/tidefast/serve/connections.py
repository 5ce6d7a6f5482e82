"""Connections within bounds: how many there are, how long a head may take, how long an answer may lie unread."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = 10.0
"""Seconds within which the head of a request is there, from the connection or the answer before it on."""
_SPARE = 200  # files beside connections: snapshots, the journal, libraries
_AT_ONCE = 16  # connections that are accepted before anything else gets its turn
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 19\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\nService Unavailable"
)
_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 15\r\n"
    b"Connection: close\r\n\r\nRequest Timeout"
)
_log = logging.getLogger("tidefast.serve")


class BoundedConnection(H11Protocol):
    """One connection; `check` ends it when it takes too long."""

    _head_since: float | None = None
    _unread_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._head_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note()

    def _note(self) -> None:
        """From when on the next head is awaited; further bytes of it, or of a body nobody wants, change nothing."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self.loop.time()

    def check(self, patience: float) -> None:
        """End it when a head is late, or when an answer was not read for `patience` seconds."""
        now = self.loop.time()
        unread = self.transport.get_write_buffer_size() > 0
        self._unread_since = (self._unread_since or now) if unread else None
        if self._unread_since is not None and now - self._unread_since > patience:
            self.transport.abort()
        elif self._head_since is not None and now - self._head_since > HEAD and not self.transport.is_closing():
            if self.cycle is None and self.conn.trailing_data[0]:
                self.transport.write(_LATE)
            self.transport.close()


class Acceptor:
    """Takes connections from a listening socket, no more than `most` at a time; the others are told so at once.

    asyncio would accept all that wait before it looks at any, and log an error for each that finds no file.

    make: a new protocol for each connection.
    """

    def __init__(self, listening: socket.socket, make: Callable[[], asyncio.Protocol], most: int) -> None:
        self._listening, self._make, self._most = listening, make, most
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[Any]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self.open: Callable[[], int] = lambda: 0
        """How many connections there are."""
        listening.setblocking(False)
        self._loop.add_reader(listening, self._ready)

    def close(self) -> None:
        """Take no more."""
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._listening)

    def _ready(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("no connection can be accepted for a second: %s", error)
                self._loop.remove_reader(self._listening)
                self._paused = self._loop.call_later(1.0, self._resume)
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                return
            connection.setblocking(False)
            if self.open() + len(self._starting) >= self._most:
                _log.warning("there are %d connections, which is the limit: one more is refused", self._most)
                with contextlib.suppress(OSError):
                    connection.send(_FULL)
                connection.close()
                continue
            task = self._loop.create_task(self._start(connection))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError as error:
            connection.close()
            _log.warning("a connection could not be used: %s", error)

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._listening, self._ready)


def affordable(wanted: int) -> int:
    """So many connections as are wanted, or as the limit on open files allows; that is raised where it may be."""
    if sys.platform == "win32":
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _SPARE
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    most = max(soft - _SPARE, soft // 2)
    _log.warning(
        "process %d may open %d files: it takes %d connections at a time, not %d", os.getpid(), soft, most, wanted
    )
    return most
