"""What the network side asks of a service, be it one process or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from tidefast.core.feedback import Feedback
from tidefast.serve.alarms import Alarm
from tidefast.serve.answer import Answer
from tidefast.serve.images import ImageArray
from tidefast.serve.limits import ByteBudget
from tidefast.serve.settings import Settings

T = TypeVar("T")


class StreamService(Protocol):
    """Answers for streams; everything `async` belongs into one event loop, `start` first and `stop` last.

    Whatever prevents an answer is a RefusedError.
    """

    settings: Settings
    labels: list[str] | None
    """Names of the classes, if they have any."""
    size: tuple[int, int] | None
    """Height and width of the images, once they are known."""
    bodies: ByteBudget
    stopping: bool
    snapshot_works: bool

    async def start(self) -> None:
        """Begin to take requests."""

    async def stop(self) -> None:
        """Finish what was accepted, and lose nothing of it."""

    async def decode(self, work: Callable[[], T], size: int) -> T:
        """Run a decoder, without keeping other requests waiting."""
        ...

    async def answer(self, name: str, pixels: ImageArray, *, adapt: bool) -> Answer:
        """Predict, and adapt unless told otherwise."""
        ...

    async def require_labels_wanted(self, name: str) -> None:
        """A RefusedError where labels for a stream are of no use."""

    async def feedback(self, name: str, pixels: ImageArray, labels: Sequence[int]) -> Feedback:
        """Tell a stream what some images show; what that decided."""
        ...

    async def listed(self, prefix: str, order: str, after: str, limit: int) -> list[dict[str, Any]]:
        """Streams whose names begin with `prefix`: by name, or those first that need "attention"."""
        ...

    async def status(self, name: str) -> dict[str, Any]:
        """What is known of a stream."""
        ...

    async def history(self, name: str, since: int) -> list[dict[str, Any]]:
        """What is remembered of a stream's steps after `since`, the oldest first."""
        ...

    async def freeze(self, name: str, frozen: bool) -> None:
        """From now on the stream answers without adapting, or adapts again."""

    async def reset(self, name: str) -> None:
        """Back to the source model."""

    async def rollback(self, name: str, snapshot: str) -> None:
        """Back to what the stream was in a snapshot; one that was dropped begins again."""

    async def drop(self, name: str) -> None:
        """Forget a stream."""

    async def snapshot(self) -> dict[str, Any]:
        """Take a snapshot now."""
        ...

    async def listed_snapshots(self) -> list[dict[str, Any]]:
        """The snapshots, the oldest first."""
        ...

    async def alarms(self) -> list[Alarm]:
        """Those that are on, the latest last."""
        ...

    async def problems(self) -> list[str]:
        """Why the service is not ready; empty when it is."""
        ...

    async def metrics(self) -> bytes:
        """All numbers in Prometheus' text format."""
        ...

    async def info(self) -> dict[str, Any]:
        """What is served, and how."""
        ...

    def rejected(self, name: str | None, reason: str) -> None:
        """Count a request that was refused; `reason` is one of a small fixed set."""
