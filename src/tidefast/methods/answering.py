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
from tidefast.core.step import Forward
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


def joined(recent: Tensor | None, image: Tensor, window: int) -> Tensor:
    """The latest images that came one by one, with one more: at most `window` of them, in memory of their own."""
    if recent is None:
        return image.clone()
    if recent.shape[1:] != image.shape[1:]:
        raise ValueError(
            f"single images are gathered into batches and must have one size: those before have the shape "
            f"{tuple(recent.shape[1:])}, this one has {tuple(image.shape[1:])}; resize them, or give batches"
        )
    return torch.cat([recent, image])[-window:]


def _state(method: Method, network: Network, images: Tensor, session: Session) -> State:
    """The method's state; before the number of classes is known, that of a method that has seen nothing."""
    kind = type(method)
    if session.states or (kind.forward is Method.forward and kind.predict is Method.predict):
        return session.states.get("method", State())
    return State(method.fields(network, network(images).shape[1]))


@torch.no_grad()
def answer(method: Method, network: Network, images: Tensor, session: Session, window: int) -> Tensor:
    """Finite logits for any images, from the session as it is; unusable pixels count as 0, and a row that stays
    unusable gets equal logits. A single image is answered in the company of the latest that came one by one."""
    if not all_finite(images):
        images = torch.where(torch.isfinite(images), images, 0.0)
    company = session.recent if len(images) == 1 and network.statistics.needs_batch else None
    asked = images if company is None else joined(company, images, window)
    logits = method.output(run(method, method.predict, network, asked, session))[-len(images) :]
    return logits if all_finite(logits) else torch.where(torch.isfinite(logits).all(1, keepdim=True), logits, 0.0)
