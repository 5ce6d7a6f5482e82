"""In which order the images of a set come: orders of one pass over it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tidefast.core.constraints import Constrained, Count, Positive
from tidefast.core.registry import Registry
from tidefast.streams.errors import StreamError

Positions = npt.NDArray[np.int64]

_SMALLEST_CHUNK = 10
_TRIES = 500


class Order(Constrained, ABC):
    """Puts the images of a set in an order for one pass; a pure function of the labels and of the generator."""

    name: ClassVar[str] = ""

    @abstractmethod
    def draw(self, labels: Positions, random: np.random.Generator) -> Positions:
        """Positions [N] of the images in the set, each once; labels [N] are those of the set."""


orders: Registry[Order] = Registry("order", Order)


@orders.register("as-given")
@dataclass(frozen=True)
class AsGiven(Order):
    """The order of the image set itself.

    >>> AsGiven().draw(np.array([3, 1, 2]), np.random.default_rng(0)).tolist()
    [0, 1, 2]
    """

    def draw(self, labels: Positions, random: np.random.Generator) -> Positions:
        return np.arange(len(labels), dtype=np.int64)


@orders.register("shuffled")
@dataclass(frozen=True)
class Shuffled(Order):
    """A uniformly random order: labels are independent and identically distributed.

    >>> sorted(Shuffled().draw(np.array([3, 1, 2]), np.random.default_rng(0)).tolist())
    [0, 1, 2]
    """

    def draw(self, labels: Positions, random: np.random.Generator) -> Positions:
        return random.permutation(len(labels)).astype(np.int64)


@orders.register("by-label")
@dataclass(frozen=True)
class ByLabel(Order):
    """One class after the other, in the order of their labels, shuffled within: as far from iid as it gets.

    >>> labels = np.array([1, 0, 1, 0])
    >>> labels[ByLabel().draw(labels, np.random.default_rng(0))].tolist()
    [0, 0, 1, 1]
    """

    def draw(self, labels: Positions, random: np.random.Generator) -> Positions:
        order = random.permutation(len(labels))
        return order[np.argsort(labels[order], kind="stable")].astype(np.int64)


@orders.register("dirichlet")
@dataclass(frozen=True)
class Dirichlet(Order):
    """Non-iid labels as in CIN-C non-iid (after NOTE): a chunk per class, Dirichlet(delta) shares of each class.

    A chunk that is full takes no more classes; a draw whose smallest chunk has fewer than ten images is thrown away.
    What a delta means depends on the set: with the 1000 classes of ImageNet 0.1 is nearly iid, with ten classes it
    nearly sorts by label.

    >>> labels = np.repeat(np.arange(4), 50)
    >>> order = Dirichlet(0.1).draw(labels, np.random.default_rng(0))
    >>> bool((np.diff(labels[order]) == 0).mean() > 0.9), sorted(order.tolist()) == list(range(200))
    (True, True)
    """

    delta: Positive = 0.1

    def draw(self, labels: Positions, random: np.random.Generator) -> Positions:
        chunks = int(labels.max()) + 1
        if len(labels) < _SMALLEST_CHUNK * chunks:
            raise StreamError(
                f"Dirichlet needs {_SMALLEST_CHUNK} images for each of its {chunks} chunks (one per class), got "
                f"{len(labels)} images; use more images, or SlotDirichlet, which has no such limit"
            )
        for _ in range(_TRIES):
            classes = [random.permutation(np.flatnonzero(labels == label)) for label in range(chunks)]
            cuts = self._cuts([len(members) for members in classes], random)
            if cuts is not None:
                return _chunk_by_chunk(classes, cuts, random)
        raise StreamError(
            f"no draw in {_TRIES} gave every chunk {_SMALLEST_CHUNK} images: delta={self.delta:g} is too small for "
            f"{len(labels)} images of {chunks} classes; use a larger delta, ByLabel, or SlotDirichlet"
        )

    def _cuts(self, sizes: list[int], random: np.random.Generator) -> Positions | None:
        """Where each class is cut into chunks, [C, K + 1]; None when the draw is to be thrown away."""
        chunks = len(sizes)
        filled = np.zeros(chunks, dtype=np.int64)
        cuts = np.empty((chunks, chunks + 1), dtype=np.int64)
        for label, size in enumerate(sizes):
            shares = random.dirichlet(np.full(chunks, self.delta))
            shares[filled >= sum(sizes) / chunks] = 0.0
            total = shares.sum()
            if not total > 0:
                return None
            cuts[label] = _cut(size, shares / total)
            filled += np.diff(cuts[label])
        return cuts if filled.min() >= _SMALLEST_CHUNK else None


@orders.register("slot-dirichlet")
@dataclass(frozen=True)
class SlotDirichlet(Order):
    """Non-iid labels as in RoTTA and PeTTA: Dirichlet(gamma) shares of each class over slots, without balancing.

    `slots` defaults to the number of classes, at most 100. At the same parameter this is another stream than
    `Dirichlet` gives; say which one was used.

    >>> labels = np.repeat(np.arange(4), 5)
    >>> sorted(SlotDirichlet(0.1).draw(labels, np.random.default_rng(0)).tolist()) == list(range(20))
    True
    """

    gamma: Positive = 0.1
    slots: Count | None = None

    def draw(self, labels: Positions, random: np.random.Generator) -> Positions:
        count = int(labels.max()) + 1
        slots = min(count, 100) if self.slots is None else self.slots
        classes = [np.flatnonzero(labels == label) for label in range(count)]
        shares = random.dirichlet(np.full(slots, self.gamma), size=count)
        cuts = np.stack([_cut(len(members), share) for members, share in zip(classes, shares, strict=True)])
        return _chunk_by_chunk(classes, cuts, random)


def _cut(size: int, shares: npt.NDArray[np.float64]) -> Positions:
    """Edges [K + 1] of pieces of 0..size with about these shares; the last piece takes what is left."""
    inner = np.minimum(np.floor(size * np.cumsum(shares)[:-1]), size).astype(np.int64)
    return np.concatenate([[0], inner, [size]])


def _chunk_by_chunk(classes: list[Positions], cuts: Positions, random: np.random.Generator) -> Positions:
    """Chunk after chunk, and in each the pieces of all classes in a random order of the classes."""
    chunks = cuts.shape[1] - 1
    rank = random.permuted(np.tile(np.arange(len(classes)), (chunks, 1)), axis=1)
    members = np.concatenate(classes).astype(np.int64)
    label = np.repeat(np.arange(len(classes)), [len(members) for members in classes])
    chunk = np.concatenate([np.repeat(np.arange(chunks), np.diff(edges)) for edges in cuts])
    # lexsort is stable: within a piece the members keep their order.
    return members[np.lexsort((rank[chunk, label], chunk))]
