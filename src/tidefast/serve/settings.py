"""Everything that can be chosen of a service, checked at construction."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidefast.core.validation import require_count, require_number

TOKEN_LENGTH = 16


@dataclass(frozen=True)
class Settings:
    """The options of `tidefast serve`.

    >>> Settings(host="0.0.0.0")
    Traceback (most recent call last):
    ...
    ValueError: without a token the service listens on loopback only, got host '0.0.0.0': give --token-file
    """

    model: str = "bundled-resnet"
    """A registered name, with options as in `tidefast run`, or module:function."""
    weights: str | None = None
    """A .safetensors file with the model's state dict; left out, the model's own."""
    method: str = "roid"
    reset: str = "asr"
    optimizer: str | None = None
    seed: int = 0
    window: int = 16
    source: str | None = None
    labels: str | None = None
    """A file with the name of a class on each line."""
    side: tuple[int, int] | None = None
    """Height and width of the images; left out, 32 for bundled models, else those of the first images that fit."""

    state: Path = Path("tidefast-state")
    snapshot_every: float = 30.0
    keep: int = 5

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)

    workers: int = 1
    """Streams that take a step at the same time."""
    threads: int | None = None
    """Of torch, for each worker; left out, the cores are shared out."""
    resident: int = 1024
    max_batch: int = 64
    """Images that make a step at once, and the most that a request may hold."""
    max_wait: float = 0.01
    """Seconds that the first image of a step waits for others."""
    queue: int = 4096
    """Images that may wait in all."""
    stream_queue: int = 512
    """Images of one stream that may wait."""
    max_streams: int = 10_000
    max_body: int = 64 * 2**20
    """Bytes of a request."""
    max_pixels: int = 4096 * 4096
    """Of one image; of all images of a request as long as their size is not known."""
    timeout: float = 30.0
    """Seconds until a request is answered, be it with an error."""
    rate: float = 1000.0
    """Requests a second of one client, in the long run; 0: any number."""
    connections: int = 1000
    drain: float = 20.0
    """Seconds that a shutdown gives to requests that were accepted."""
    access_log: bool = False

    def __post_init__(self) -> None:
        for name in ("keep", "workers", "resident", "max_batch", "queue", "stream_queue", "max_streams", "max_body"):
            require_count(name, getattr(self, name))
        for name in ("max_pixels", "connections", "window"):
            require_count(name, getattr(self, name))
        require_count("seed", self.seed, low=0)
        if self.threads is not None:
            require_count("threads", self.threads)
        for name in ("snapshot_every", "timeout", "drain"):
            require_number(name, getattr(self, name), 0.0, 1e6, low_open=True)
        require_number("max_wait", self.max_wait, 0.0, 60.0)
        require_number("rate", self.rate, 0.0)
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must lie in 0..65535, got {self.port}")
        if self.stream_queue < self.max_batch or self.queue < self.max_batch:
            raise ValueError(
                f"queue and stream_queue must hold max_batch ({self.max_batch}) images or more, "
                f"got {self.queue} and {self.stream_queue}"
            )
        if self.side is not None:
            for length in self.side:
                require_count("side", length)
        if self.token is None:
            if not is_loopback(self.host):
                raise ValueError(
                    f"without a token the service listens on loopback only, got host {self.host!r}: give --token-file"
                )
        elif len(self.token) < TOKEN_LENGTH or not self.token.isascii() or not self.token.isprintable():
            raise ValueError(
                f"the token must have {TOKEN_LENGTH} or more printable ASCII characters, got {len(self.token)}: make "
                "one with python -c 'import secrets; print(secrets.token_urlsafe())'"
            )

    @property
    def burst(self) -> float:
        """Requests that a client may send at once."""
        return max(1.0, 2 * self.rate)

    def threads_each(self) -> int:
        """Threads of torch for each worker."""
        return self.threads or max(1, (os.cpu_count() or 1) // self.workers)

    def public(self) -> dict[str, Any]:
        """What everybody who has the token may know: numbers and names, no secret and no path."""
        hidden = {"token", "state", "weights", "source", "labels", "host", "port"}
        plain = dataclasses.asdict(self)
        return {name: value for name, value in plain.items() if name not in hidden}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "example.org", "")]
    [True, True, True, False, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
