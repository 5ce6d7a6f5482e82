"""The process that serves: a socket, signals, and an end that loses nothing."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, cast

import uvicorn

from tidefast.serve.connections import Acceptor, BoundedConnection, affordable
from tidefast.serve.http import make_app
from tidefast.serve.interface import StreamService
from tidefast.serve.repeated import quieten

_log = logging.getLogger("tidefast.serve")


class _Server(uvicorn.Server):
    """At SIGTERM and SIGINT it finishes what it has and returns; uvicorn's own would raise the signal once more."""

    def __init__(
        self, config: uvicorn.Config, service: StreamService, listening: socket.socket, connections: int
    ) -> None:
        super().__init__(config)
        self._service, self._listening, self._connections = service, listening, connections
        self._acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # it accepts nothing: that is ours, within bounds
        if self.should_exit:
            return
        self._acceptor = Acceptor(self._listening, self._connection, self._connections)
        self._acceptor.open = lambda: len(self.server_state.connections)

    def _connection(self) -> BoundedConnection:
        return BoundedConnection(self.config, self.server_state, self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second
            for connection in list(self.server_state.connections):
                cast(BoundedConnection, connection).check(self._service.settings.timeout)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        await super().shutdown(sockets=[self._listening])

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = {number: signal.signal(number, self._end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._service.stopping = True
        self.should_exit = True


def run(service: StreamService, started: Callable[[str], Any] = print) -> int:
    """Serve until a signal says to end; `started` is told the address. 0, or 1 when the last snapshot failed."""
    settings = service.settings
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # By name: of a protocol that is only implied, asyncio does not know that small answers should not wait (NODELAY).
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((settings.host, settings.port))
        except OSError as error:
            raise OSError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}") from error
        listening.listen(2048)
        quieten()
        connections = affordable(settings.connections)
        config = uvicorn.Config(
            make_app(service),
            log_config=None,
            access_log=settings.access_log,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            ws="none",
            http=BoundedConnection,
            timeout_graceful_shutdown=max(1, round(settings.drain)),
        )
        host = f"[{settings.host}]" if family == socket.AF_INET6 else settings.host
        started(f"http://{host}:{listening.getsockname()[1]}")
        _Server(config, service, listening, connections).run()
    return 0 if service.snapshot_works else 1
