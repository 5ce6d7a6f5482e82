"""What methods and reset policies see of one adapting call, and what a method answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from tidefast.core.finite import Checks
from tidefast.core.network import Network
from tidefast.core.state import Value

_HALF_PRECISION_LOSS_SCALE = 2.0**10

T = TypeVar("T")


@dataclass(frozen=True)
class Forward:
    """What `Method.forward` gives: the logits to answer with, and what else of the pass the loss needs."""

    logits: Tensor
    """[batch, classes]."""
    for_loss: Any = None
    """Anything, of a type that the method chooses; `loss` and `gradient` get it from `Step.from_forward`."""

    @classmethod
    def of(cls, result: Tensor | Forward) -> Forward:
        """The same, where a method gave logits alone."""
        return cls(result) if isinstance(result, Tensor) else result


class Reference(Protocol):
    """What the network that does not adapt says of the images at hand: logits [images, classes]."""

    def __call__(self, *, running_statistics: bool = False) -> Tensor: ...


@dataclass
class Step:
    """What the hooks see of one adapting call."""

    number: int
    """1 for the first step of the stream."""
    images: Tensor
    logits: Tensor
    """[batch, classes], of before this step's update: what `Method.forward` gave, attached to the graph."""
    network: Network
    constants: Mapping[str, Tensor]
    """What `Method.prepare` computed from source data."""
    seed: int
    optimizer: torch.optim.Optimizer | None = None
    """What makes the update, over the arena's one parameter."""
    for_loss: Any = None
    """What `Method.forward` gave along with the logits; see `from_forward`."""
    predict: Callable[[Tensor], Tensor] | None = None
    """The method's logits for other images; see `answer_to`."""
    kept: Tensor | None = None
    """The parameters that the policy kept last, laid out like the arena, where it keeps any (`Reset.keeps`)."""
    objective: Objective | None = None
    """What the method made of the batch; set once its gradient is there."""
    checks: Checks = field(default_factory=Checks)
    """What the step must have made finite to count; whoever fetches numbers next is told."""
    _source_logits: dict[bool, Tensor] = field(default_factory=dict)
    _loss: float | None = None

    @property
    def num_classes(self) -> int:
        return self.logits.shape[1]

    @property
    def answer(self) -> Tensor:
        """The logits that the caller gets, but for `Method.output`, and that policies judge; without a graph."""
        own = None if self.objective is None else self.objective.answer
        return self.logits.detach() if own is None else own

    @property
    def loss(self) -> float | None:
        """The objective's loss as a number; None where there is none."""
        if self._loss is None and self.objective is not None and self.objective.loss is not None:
            (self._loss,) = self.checks.fetch(self.objective.loss.detach())
        return self._loss

    def know_loss(self, number: float) -> None:
        """What `loss` is, where it was fetched along with those of other streams."""
        self._loss = number

    def fetch(self, *scalars: Tensor) -> list[float]:
        """The numbers in `scalars`, fetched from the device at once, and with them whether the step is sound.

        Where it is not, this raises `UnusableError`, which a policy lets pass: the step will be undone.
        """
        if not scalars and not len(self.checks):
            return []
        loss = None if self.objective is None or self._loss is not None else self.objective.loss
        numbers = self.checks.fetch(*scalars, *([] if loss is None else [loss.detach()]))
        if loss is not None:
            self._loss = numbers.pop()
        return numbers

    def answer_to(self, images: Tensor) -> Tensor:
        """What would be answered for other images, as network and state are now: logits [batch, classes]."""
        return self.network(images) if self.predict is None else self.predict(images)

    def from_forward(self, kind: type[T]) -> T:
        """What `Method.forward` gave as `Forward.for_loss`, which must be a `kind`."""
        if not isinstance(self.for_loss, kind):
            raise TypeError(
                f"forward gave {type(self.for_loss).__name__} for the loss, which expects {kind.__name__}: return "
                f"Forward(logits, for_loss={kind.__name__}(...)) from forward()"
            )
        return self.for_loss

    def concluded(self, loss: Objective | Asking) -> Objective:
        """What a loss comes to, which may ask for the logits of further images on the way."""
        if isinstance(loss, Objective):
            return loss
        result = continued(loss)
        while isinstance(result, Views):
            result = continued(loss, self._logits_of(result))
        return result

    def _logits_of(self, views: Views) -> Tensor:
        of_source = self.network.statistics.of_source() if views.source_statistics else nullcontext()
        with torch.set_grad_enabled(views.gradient), of_source:
            return self.network(views.images)

    @functools.cached_property
    def generator(self) -> torch.Generator:
        """Randomness of this step: a function of the adapter's seed and the step's number alone."""
        return torch.Generator().manual_seed((self.seed * 0x9E3779B97F4A7C15 + self.number) % 2**63)

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Add the gradient of `loss` to the arena's; scaled on the way where float16 would lose small values."""
        arena = self.network.arena
        if needs_loss_scale(arena.gradients.device):
            arena.gradients.mul_(_HALF_PRECISION_LOSS_SCALE)
            torch.autograd.backward(loss * _HALF_PRECISION_LOSS_SCALE, retain_graph=retain_graph)
            arena.gradients.div_(_HALF_PRECISION_LOSS_SCALE)
        else:
            torch.autograd.backward(loss, retain_graph=retain_graph)

    def source_logits(self, *, running_statistics: bool = False) -> Tensor:
        """The source model's logits for these images, computed once however many ask."""
        if running_statistics not in self._source_logits:
            self._source_logits[running_statistics] = self.network.source_logits(
                self.images, running_statistics=running_statistics
            )
        return self._source_logits[running_statistics]

    def know_source_logits(self, logits: Tensor, *, running_statistics: bool) -> None:
        """What `source_logits` gives, where a pass for several streams has computed it."""
        self._source_logits[running_statistics] = logits


def needs_loss_scale(device: torch.device) -> bool:
    """Whether passes are in float16, in which small gradients would be lost."""
    return torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.float16


@dataclass(frozen=True)
class Objective:
    """A method's answer to a batch."""

    loss: Tensor | None
    """Scalar; None when no sample contributes, or the method needs none, and then there is no gradient."""
    selected: int
    """Samples that contributed."""
    updates: Mapping[str, Value] = field(default_factory=dict)
    """New values of declared state; they take effect only if the step turns out sound."""
    step: bool = True
    """Whether the optimiser steps."""
    answer: Tensor | None = None
    """Logits [batch, classes] to answer with in place of `Step.logits`; no graph."""


@dataclass(frozen=True)
class Views:
    """Further images whose logits a loss needs: `logits = yield Views(images)`."""

    images: Tensor
    gradient: bool = True
    """Whether the loss has a gradient through their logits."""
    source_statistics: bool = False
    """Whether they are normalised by the source's statistics in place of their own."""


Asking: TypeAlias = Generator[Views, Tensor, Objective]
"""A loss on its way: it yields what it asks for, is sent the logits [images, classes], and returns the objective."""


def continued(loss: Asking, logits: Tensor | None = None) -> Views | Objective:
    """What a loss comes to, or asks for next, with the logits of what it asked for last; None to begin with."""
    try:
        return next(loss) if logits is None else loss.send(logits)
    except StopIteration as end:
        objective: Objective = end.value
        return objective
