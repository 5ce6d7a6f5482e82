"""Everything that can be chosen of a service, checked at construction."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from tidefast.core.constraints import Constrained, Count, CountOrZero, NonNegative
from tidefast.core.resumption import Resumption
from tidefast.serve.alarm_kinds import OF_A_STREAM

TOKEN_LENGTH = 16
_OF_A_NODE = (
    *("host", "port", "token", "connections", "rate", "body_budget", "access_log", "otel"),
    *("cluster", "partitions"),
)
Seconds = Annotated[float, Interval(gt=0.0, le=1e6)]


@dataclass(frozen=True)
class Settings(Constrained):
    """The options of `tidefast serve`.

    >>> Settings(host="0.0.0.0")
    Traceback (most recent call last):
    ...
    ValueError: without a token the service listens on loopback only, got host '0.0.0.0': give --token-file
    """

    model: str = "bundled-resnet"
    """A registered name, with options as in `tidefast run`, or module:function."""
    model_name: str | None = None
    """Of the model in the Open Inference Protocol; left out, `model`."""
    weights: str | None = None
    """A .safetensors file with the model's state dict; left out, the model's own."""
    device: str = "cpu"
    """Where the model is, such as "cuda:0"."""
    method: str = "roid"
    reset: str = "never"
    optimizer: str | None = None
    seed: CountOrZero | None = None
    """Left out, 0, or that of the streams in `state`."""
    window: Count = 16
    gather: Count | None = None
    """Steps of fewer images are gathered, `window` of them at a time; left out, all of fewer than `window`: how many
    requests meet in a step is an accident of their timing. See `Adapter`."""
    source: str | None = None
    canaries: str | None = None
    """Images that the model knows how to answer: a folder, .npy, .npz or data set; all streams are watched by them."""
    labels: str | None = None
    """A file with the name of a class on each line."""
    side: tuple[Count, Count] | None = None
    """Height and width of the images; left out, 32 for bundled models, else those of the first images that fit."""

    state: Path = Path("tidefast-state")
    resume: Resumption = "same"
    """Where `state` was saved with another learning rate or seed: refuse it, go on as saved, or with one's own."""
    freeze_on_alarm: tuple[str, ...] = ()
    """Kinds of alarms at which the stream that they concern answers without adapting from then on."""
    snapshot_every: Seconds = 30.0
    keep: Count = 5

    host: str = "127.0.0.1"
    port: Annotated[int, Interval(ge=0, le=65535)] = 8000
    token: str | None = field(default=None, repr=False)

    workers: Count = 1
    """Streams that take a step at the same time."""
    together: Count = 1
    """Streams whose requests wait share one step, so many at most; 1: one after the other, bit for bit as alone."""
    threads: Count | None = None
    """Of torch, for each worker; left out, the cores are shared out."""
    resident: Count = 1024
    max_batch: Count = 64
    """Images that make a step at once, and the most that a request may hold."""
    max_wait: Annotated[float, Interval(ge=0.0, le=60.0)] = 0.01
    """Seconds that the first image of a step waits for others."""
    queue: Count = 4096
    """Images that may wait in all."""
    stream_queue: Count = 512
    """Images of one stream that may wait."""
    max_streams: Count = 10_000
    max_body: Count = 64 * 2**20
    """Bytes of a request."""
    body_budget: Count = 512 * 2**20
    """Bytes that all requests under way may hold, as they came and decoded."""
    max_pixels: Count = 4096 * 4096
    """Of one image; of all images of a request as long as their size is not known."""
    timeout: Seconds = 30.0
    """Seconds until a request is answered, be it with an error."""
    rate: NonNegative = 1000.0
    """Requests a second of one client, in the long run; 0: any number."""
    connections: Count = 1000
    drain: Seconds = 20.0
    """Seconds that a shutdown gives to requests that were accepted."""
    access_log: bool = False
    log: Literal["text", "json"] = "text"
    otel: bool = False
    """Send traces and metrics by OpenTelemetry, where its own variables say."""

    cluster: str | None = None
    """Address of a Ray cluster to take part in: "local" for one of one's own, "auto" for that of this node."""
    partitions: Count | None = None
    """Of the cluster's streams; left out, as `state` has it, or one for each core of the cluster."""
    lease: Seconds = 10.0
    """Seconds after which a partition that cannot be reached is taken over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream_queue < self.max_batch or self.queue < self.max_batch:
            raise ValueError(
                f"queue and stream_queue must hold max_batch ({self.max_batch}) images or more, "
                f"got {self.queue} and {self.stream_queue}"
            )
        if self.partitions is not None and self.cluster is None:
            raise ValueError(f"partitions are those of a cluster, got {self.partitions}: give --cluster too")
        if self.body_budget < self.max_body:
            raise ValueError(
                f"body_budget must be max_body ({self.max_body}) bytes or more, got {self.body_budget}: one request "
                "has to fit"
            )
        strangers = [kind for kind in self.freeze_on_alarm if kind not in OF_A_STREAM]
        if strangers:
            raise ValueError(f"freeze_on_alarm must be among {', '.join(OF_A_STREAM)}, got {', '.join(strangers)}")
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
    def public_name(self) -> str:
        """Of the model, as clients of the Open Inference Protocol call it."""
        return self.model_name or self.model

    @property
    def burst(self) -> float:
        """Requests that a client may send at once."""
        return max(1.0, 2 * self.rate)

    def threads_each(self) -> int:
        """Threads of torch for each worker."""
        return self.threads or max(1, (os.cpu_count() or 1) // self.workers)

    def of_the_cluster(self) -> Settings:
        """What all nodes of a cluster have in common: no secret, and nothing that is a node's own."""
        own: dict[str, Any] = {one.name: one.default for one in dataclasses.fields(self) if one.name in _OF_A_NODE}
        own["body_budget"] = max(self.max_body, own["body_budget"])
        return dataclasses.replace(self, **own, state=Path(self.state).resolve())

    def differing(self, other: Settings) -> list[str]:
        """Names of the settings that are not the same.

        >>> Settings(method="eta").differing(Settings(method="roid", keep=3))
        ['keep', 'method']
        """
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return sorted(name for name in mine if mine[name] != theirs[name])

    def public(self) -> dict[str, Any]:
        """What everybody who has the token may know: numbers and names, no secret and no path."""
        hidden = {"token", "state", "weights", "source", "canaries", "labels", "host", "port", "cluster"}
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
