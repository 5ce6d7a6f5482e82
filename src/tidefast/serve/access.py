"""What every request passes before anything looks at it: who asks, from where, and how often."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from tidefast.serve.limits import RateLimit
from tidefast.serve.refused import RefusedError
from tidefast.serve.settings import Settings, is_loopback

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse = Callable[[RefusedError, str, float], App]

GUARDED = ("/v1/", "/v2/models", "/metrics")
"""Addresses below these need the token; the others tell nothing about the streams."""
_ENCODED = ("/v1/streams/", "/v2/models/")
_READING = ("GET", "HEAD", "OPTIONS")


class AccessControl:
    """ASGI middleware: token, origin and rate of every request, and names of streams as they were sent.

    refuse: makes the answer to a request that may not pass, from the reason, the address and the seconds to wait.
    """

    def __init__(self, app: App, settings: Settings, refuse: Refuse) -> None:
        self._app, self._refuse = app, refuse
        self._token = None if settings.token is None else settings.token.encode()
        self._rate = RateLimit(settings.rate, settings.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            wait = 0.0
            try:
                if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
                    send = _ending(send)  # where it ends is a matter of opinion, and what follows may be smuggled
                    raise RefusedError("malformed", "a request has a Content-Length or a Transfer-Encoding, not both")
                wait = self._check(scope)
                if wait:
                    raise RefusedError("rate", "too many requests from this address: send slower")
            except RefusedError as error:
                await self._refuse(error, scope["path"], wait)(scope, receive, send)
                return
            raw = scope["raw_path"].decode("latin-1")
            if raw.startswith(_ENCODED):
                scope["path"] = raw  # a slash in a name is still %2F here, and the route takes the name apart
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> float:
        """Raise, or return the seconds to wait."""
        path: str = scope["path"]
        if not path.startswith(GUARDED):
            return 0.0
        client = scope.get("client")
        wait = self._rate.wait(client[0] if client else "")
        if wait:
            return wait
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self._token is not None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                raise RefusedError("unauthorized", "this needs the header Authorization: Bearer <token>")
        elif not is_loopback(_hostname(host)):  # a page elsewhere may have a name that leads to our address
            raise RefusedError("foreign", f"without a token only loopback is served, got the host {host[:80]!r}")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").partition("://")[2] != host:
            raise RefusedError("foreign", "requests from pages of another site are not served")
        site = headers.get(b"sec-fetch-site", b"none").strip().lower()
        if scope["method"] not in _READING and site not in (b"same-origin", b"none"):
            raise RefusedError("foreign", "pages of another site may not change anything")
        return 0.0


def _ending(send: Send) -> Send:
    """Answers that are the last of their connection."""

    async def last(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return last


def _hostname(host: str) -> str:
    """The name in a Host header, without the port.

    >>> [_hostname(host) for host in ("localhost:80", "[::1]:80", "[::1")]
    ['localhost', '::1', '']
    """
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
