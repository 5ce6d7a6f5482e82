"""What a method answers for images, checked, and finite whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from tidefast.core.finite import all_finite
from tidefast.core.network import Network
from tidefast.core.session import Session, SlidingWindow
from tidefast.core.sliding import SlidingPass
from tidefast.core.state import State
from tidefast.core.step import Forward, Reference
from tidefast.methods.base import Method

R = TypeVar("R", Tensor, Tensor | Forward)


def run(
    method: Method,
    hook: Callable[[Network, Tensor, State], R],
    network: Network,
    images: Tensor,
    session: Session,
    sliding: SlidingPass | None = None,
) -> R:
    """What `hook`, the `forward` or the `predict` of `method`, gives."""
    with network.taking(images, sliding):
        result = hook(network, images, _state(method, network, images, session))
    logits = Forward.of(result).logits
    if len(logits) != len(images):
        raise ValueError(f"the model returned {len(logits)} rows of logits for {len(images)} images")
    if session.num_classes is not None and logits.shape[1] != session.num_classes:
        raise ValueError(f"the model returned {logits.shape[1]} classes, but num_classes is {session.num_classes}")
    return result


def is_one_pass(kind: type[Method]) -> bool:
    """Whether a method's logits are the network's own, of one pass."""
    return kind.forward is Method.forward and kind.predict is Method.predict


def joined(recent: Tensor | None, images: Tensor, most: int) -> Tensor:
    """The latest images that came in ones and twos, with the next: at most `most` of them, in memory of their own."""
    if recent is None:
        return images.clone()
    require_one_size(recent, images)
    return torch.cat([recent, images])[-most:]


def require_one_size(recent: Tensor, images: Tensor) -> None:
    """A ValueError where images cannot be gathered with those before."""
    if recent.shape[1:] != images.shape[1:]:
        raise ValueError(
            "single images, and others in small batches, are gathered and must have one size: those before have the "
            f"shape {tuple(recent.shape[1:])}, this one has {tuple(images.shape[1:])}; resize them, or give batches"
        )


def _state(method: Method, network: Network, images: Tensor, session: Session) -> State:
    """The method's state; before the number of classes is known, that of a method that has seen nothing."""
    if session.states or is_one_pass(type(method)):
        return session.states.get("method", State())
    return State(method.fields(network, network(images).shape[1]))


def readable(images: Tensor) -> Tensor:
    """Images whose unusable pixels count as 0."""
    return images if all_finite(images) else torch.where(torch.isfinite(images), images, 0.0)


def output(method: Method, logits: Tensor, left: SlidingWindow | None) -> Tensor:
    """Finite answers that a method makes of logits, in the company of those before them; a row that is unusable gets
    equal ones."""
    together = logits if left is None or len(left.logits) < len(logits) else left.logits
    return usable(method.output(together)[-len(logits) :])


def left_by(
    sliding: SlidingPass | None, before: SlidingWindow | None, logits: Tensor, window: int
) -> SlidingWindow | None:
    """What stands for the latest images after a pass of one stream; None where nothing sound does."""
    statistics = None if sliding is None else sliding.after()
    if statistics is None or not all_finite(statistics) or not all_finite(logits):
        return None
    return window_after(statistics, before, logits, window)


def window_after(statistics: Tensor, before: SlidingWindow | None, logits: Tensor, window: int) -> SlidingWindow:
    """What stands for the latest `window` images with these statistics, where the last of them have these logits."""
    latest = logits.detach() if before is None else torch.cat([before.logits, logits])
    return SlidingWindow(statistics, latest[-window:].clone())


def unadapted(network: Network, asked: Tensor, answers: int) -> Reference:
    """What gives finite logits of the network that does not adapt for the last `answers` of the images."""

    def reference(*, running_statistics: bool = False) -> Tensor:
        with network.taking(asked):
            return usable(network.source_logits(asked, running_statistics=running_statistics)[-answers:])

    return reference


def usable(logits: Tensor) -> Tensor:
    """Logits [images, classes] with equal ones in the rows that are not finite."""
    return logits if all_finite(logits) else torch.where(torch.isfinite(logits).all(1, keepdim=True), logits, 0.0)
