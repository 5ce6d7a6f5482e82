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


@torch.no_grad()
def answer(
    method: Method, network: Network, images: Tensor, session: Session, company: int
) -> tuple[Tensor, Reference]:
    """Finite logits for any images, from the session as it is, and what gives those of the network that does not adapt.

    Unusable pixels count as 0, and a row that stays unusable gets equal logits. With `company` the images are answered
    among the latest that were gathered, so many in all.
    """
    if not all_finite(images):
        images = torch.where(torch.isfinite(images), images, 0.0)
    asked = joined(session.recent, images, max(company, len(images))) if company else images

    def reference(*, running_statistics: bool = False) -> Tensor:
        with network.taking(asked):
            return usable(network.source_logits(asked, running_statistics=running_statistics)[-len(images) :])

    return usable(method.output(run(method, method.predict, network, asked, session))[-len(images) :]), reference


def usable(logits: Tensor) -> Tensor:
    """Logits [images, classes] with equal ones in the rows that are not finite."""
    return logits if all_finite(logits) else torch.where(torch.isfinite(logits).all(1, keepdim=True), logits, 0.0)
