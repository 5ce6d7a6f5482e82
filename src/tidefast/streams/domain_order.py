"""In which order the batches of several domains come within one visit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidefast.core.constraints import Constrained, Count, Positive
from tidefast.streams.order import Positions


class DomainOrder(Constrained, ABC):
    """Says whose next batch comes when; a pure function of the numbers of batches and of the generator."""

    @abstractmethod
    def draw(self, batches: Sequence[int], random: np.random.Generator) -> Positions:
        """Domains [sum of batches], domain d as often as it has batches."""


@dataclass(frozen=True)
class InTurn(DomainOrder):
    """One domain after the other, each whole.

    >>> InTurn().draw([2, 3], np.random.default_rng(0)).tolist()
    [0, 0, 1, 1, 1]
    """

    def draw(self, batches: Sequence[int], random: np.random.Generator) -> Positions:
        return np.repeat(np.arange(len(batches)), batches)


@dataclass(frozen=True)
class Segments(DomainOrder):
    """Continual dynamic change (CDC) as in DPCore: Dirichlet(delta) cuts each domain into segments, one for each slot.

    Slot after slot, the segments of all domains come in a random order. A larger delta does not change domains more
    often: it makes the segments more equal.

    >>> Segments().draw([4, 4], np.random.default_rng(0)).tolist()
    [0, 0, 0, 1, 0, 1, 1, 1]
    """

    delta: Positive = 1.0
    slots: Count = 3

    def draw(self, batches: Sequence[int], random: np.random.Generator) -> Positions:
        shares = random.dirichlet(np.full(self.slots, self.delta), size=len(batches))
        counts = np.asarray(batches)[:, None]
        cuts = np.minimum(np.floor(counts * np.cumsum(shares, axis=1)[:, :-1]), counts).astype(np.int64)
        lengths = np.diff(cuts, axis=1, prepend=0, append=counts)
        order = random.permuted(np.tile(np.arange(len(batches)), (self.slots, 1)), axis=1)
        return np.repeat(order.ravel(), lengths.T[np.arange(self.slots)[:, None], order].ravel())


@dataclass(frozen=True)
class Runs(DomainOrder):
    """The other rule called CDC, "multinomial" in DPCore: a domain with batches left, a number of them, and again.

    Both are drawn uniformly, the number from 1 to all that are left.

    >>> Runs().draw([4, 4], np.random.default_rng(2)).tolist()
    [1, 1, 0, 0, 0, 0, 1, 1]
    """

    def draw(self, batches: Sequence[int], random: np.random.Generator) -> Positions:
        left = np.asarray(batches, np.int64).copy()
        runs = []
        while left.any():
            domain = int(random.choice(np.flatnonzero(left)))
            length = int(random.integers(1, left[domain], endpoint=True))
            runs.append(np.full(length, domain))
            left[domain] -= length
        return np.concatenate(runs)
