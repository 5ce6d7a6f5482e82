"""What a method answers for images, checked, and finite whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from tidefast.core.finite import all_finite
from tidefast.core.network import Network
from tidefast.core.session import Session
from tidefast.core.state import State
from tidefast.core.step import Forward, Reference
from tidefast.methods.base import Method

R = TypeVar("R", Tensor, Tensor | Forward)


def run(
    method: Method, hook: Callable[[Network, Tensor, State], R], network: Network, images: Tensor, session: Session
) -> R:
    """What `hook`, the `forward` or the `predict` of `method`, gives."""
    with network.taking(images):
        result = hook(network, images, _state(method, network, images, session))
    logits = Forward.of(result).logits
    if len(logits) != len(images):
        raise ValueError(f"the model returned {len(logits)} rows of logits for {len(images)} images")
    if session.num_classes is not None and logits.shape[1] != session.num_classes:
        raise ValueError(f"the model returned {logits.shape[1]} classes, but num_classes is {session.num_classes}")
    return result


def joined(recent: Tensor | None, images: Tensor, most: int) -> Tensor:
    """The latest images that came in ones and twos, with the next: at most `most` of them, in memory of their own."""
    if recent is None:
        return images.clone()
    if recent.shape[1:] != images.shape[1:]:
        raise ValueError(
            "single images, and others in small batches, are gathered and must have one size: those before have the "
            f"shape {tuple(recent.shape[1:])}, this one has {tuple(images.shape[1:])}; resize them, or give batches"
        )
    return torch.cat([recent, images])[-most:]


def _state(method: Method, network: Network, images: Tensor, session: Session) -> State:
    """The method's state; before the number of classes is known, that of a method that has seen nothing."""
    kind = type(method)
    if session.states or (kind.forward is Method.forward and kind.predict is Method.predict):
        return session.states.get("method", State())
    return State(method.fields(network, network(images).shape[1]))


def readable(images: Tensor) -> Tensor:
    """Images whose unusable pixels count as 0."""
    return images if all_finite(images) else torch.where(torch.isfinite(images), images, 0.0)


@torch.no_grad()
def answer(method: Method, network: Network, asked: Tensor, answers: int, session: Session) -> tuple[Tensor, Reference]:
    """Finite logits for the last `answers` of some images, from the session as it is, and what gives those of the
    network that does not adapt. A row that is unusable gets equal logits."""
    logits = method.output(run(method, method.predict, network, asked, session))[-answers:]
    return usable(logits), unadapted(network, asked, answers)


def unadapted(network: Network, asked: Tensor, answers: int) -> Reference:
    """What gives finite logits of the network that does not adapt for the last `answers` of the images."""

    def reference(*, running_statistics: bool = False) -> Tensor:
        with network.taking(asked):
            return usable(network.source_logits(asked, running_statistics=running_statistics)[-answers:])

    return reference


def usable(logits: Tensor) -> Tensor:
    """Logits [images, classes] with equal ones in the rows that are not finite."""
    return logits if all_finite(logits) else torch.where(torch.isfinite(logits).all(1, keepdim=True), logits, 0.0)
