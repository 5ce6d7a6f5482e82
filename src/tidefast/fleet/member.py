"""One stream of a fleet, to be used as an adapter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tidefast.adapter import Adapter
from tidefast.core.feedback import Feedback
from tidefast.core.record import StepRecord
from tidefast.core.resumption import Resumption

if TYPE_CHECKING:
    from tidefast.fleet.fleet import Fleet


class Member(Adapter):
    """One stream of a fleet: an `Adapter` whose network is lent to it for each call."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet, self.name = fleet, name
        self.method, self.policy, self.window = fleet.method, fleet.policy, fleet.window
        self.measures = fleet.measures

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a stream of a fleet has no {name!r} of its own: its network is lent to it for each call")

    def __repr__(self) -> str:
        return f"<stream {self.name!r} at step {self.step}>"

    def __call__(self, images: Tensor) -> Tensor:
        """Predict, then adapt; a frozen stream only predicts."""
        return self.fleet.take(self.name, images).logits

    def predict(self, images: Tensor) -> Tensor:
        """Predict only: logits [batch, classes]; nothing changes, and a stream that has not begun does not begin."""
        return self.fleet.take(self.name, images, adapt=False).logits

    def feedback(self, images: Tensor, labels: Tensor | Sequence[int]) -> Feedback:
        """As `Adapter.feedback`; a KeyError where the stream has not begun."""
        with self.fleet._lent(self.name, begin=False, known=True) as (entry, adapter):
            self.fleet._mark(entry)
            return adapter.feedback(images, labels)

    def bake(self, images: Tensor) -> nn.Module:
        """As `Adapter.bake`."""
        with self.fleet._lent(self.name, begin=False) as (_, adapter):
            return adapter.bake(images)

    def reset(self) -> None:
        """Back to the source model, bit for bit, as if nothing had been seen; a frozen stream stays frozen.

        A KeyError where the stream has not begun.
        """
        with self.fleet._lent(self.name, begin=False, known=True, blank=True) as (entry, _):
            self.fleet._mark(entry)

    def save(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        """As `Adapter.save`; an adapter made alike can load it."""
        with self.fleet._lent(self.name, begin=False) as (_, adapter):
            adapter.save(path, durable=durable)

    def load(self, path: str | os.PathLike[str], *, settings: Resumption = "same") -> bool:
        """As `Adapter.load`."""
        with self.fleet._lent(self.name, begin=True, blank=True) as (entry, adapter):
            replaced = adapter.load(path, settings=settings)
            self.fleet._mark(entry)
            return replaced

    @property
    def model(self) -> nn.Module:
        """A copy of the network as it is now for this stream; later steps do not change it."""
        with self.fleet._lent(self.name, begin=False) as (_, adapter):
            values = adapter.network.arena.values.clone()
        own = self.fleet._pool.make()
        own.network.arena.assign(values)
        return own.model

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None until it is given or the first batch has told."""
        with self.fleet._lent(self.name, begin=False) as (_, adapter):
            return adapter.num_classes

    def numbers_held(self) -> int:
        """How many numbers live in memory for this stream alone; none while it is on disk."""
        entry = self.fleet._entries.get(self.name)
        session = None if entry is None else entry.session
        return 0 if session is None else session.numbers()

    @property  # type: ignore[misc]  # what sets it is the fleet's
    def step(self) -> int:
        """Adapting calls so far; one that is under way does not count yet."""
        entry = self.fleet._entries.get(self.name)
        return 0 if entry is None else entry.seen[0]

    @property  # type: ignore[misc]  # what sets it is the fleet's
    def last(self) -> StepRecord | None:
        """StepRecord of the last adapting call."""
        entry = self.fleet._entries.get(self.name)
        return None if entry is None else entry.seen[1]
