"""What RoTTA and PeTTA share: a bank of remembered images, and a mean teacher with statistics of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tidefast.core.constraints import Count, NonNegative, Share
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics, require_affine_names
from tidefast.core.state import Field, State, Value
from tidefast.core.step import Step
from tidefast.methods.shared.teacher import MeanTeacher
from tidefast.probes.held_statistics import HeldStatistics, exponential


class MemoryBank:
    """At most `capacity` images of the stream, balanced over the predicted classes, certain ones and recent ones first.

    Each class has room for capacity / classes images. An image of a class with room is taken in while the bank has any;
    later it takes the place of one of the largest classes, and an image of a class without room that of one of its own:
    of the candidate with the highest score

        s = time_weight / (1 + exp(-age / capacity)) + uncertainty_weight x uncertainty / ln(classes),

    and only if its own score, at age 0, is lower. Ages count the images offered since.

    >>> state = State(MemoryBank.fields(2))
    >>> bank = MemoryBank(state, num_classes=2)
    >>> bank.offer(torch.eye(3), classes=[0, 0, 1], uncertainties=[0.1, 0.6, 0.5])
    >>> bank.images.tolist(), bank.ages.tolist()  # the second was less certain than the first of its class
    ([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [3, 1])
    >>> state.update(bank.updates())
    >>> state["bank_classes"].tolist()
    [0, 1]
    """

    def __init__(
        self, state: State, num_classes: int, time_weight: float = 1.0, uncertainty_weight: float = 1.0
    ) -> None:
        self._classes: list[int] = state.tensor("bank_classes").tolist()
        self._uncertainties: list[float] = state.tensor("bank_uncertainties").tolist()
        self._ages: list[int] = state.tensor("bank_ages").tolist()
        self.capacity, self._num_classes = len(self._classes), num_classes
        self._time_weight, self._uncertainty_weight = time_weight, uncertainty_weight / math.log(num_classes)
        self._images = state.optional_tensor("bank_images")
        self._size = self.capacity - self._classes.count(-1)

    @staticmethod
    def fields(capacity: int) -> list[Field]:
        """The bank as declared state; places that are still empty, the last ones, have class -1."""
        return [
            Field("bank_images", lambda: None, shape=(capacity, ...)),
            Field("bank_classes", lambda: torch.full((capacity,), -1)),
            Field("bank_uncertainties", lambda: torch.zeros(capacity, dtype=torch.float32)),
            Field("bank_ages", lambda: torch.zeros(capacity, dtype=torch.int64)),
        ]

    def __len__(self) -> int:
        return self._size

    @property
    def images(self) -> Tensor:
        """The remembered images [len(bank), ...]."""
        assert self._images is not None, "nothing was offered yet"
        return self._images[: len(self)]

    @property
    def ages(self) -> Tensor:
        """How many images were offered since each came, itself included [len(bank)]."""
        return torch.tensor(self._ages[: len(self)])

    def updates(self) -> dict[str, Value]:
        """New values of the declared state."""
        return {
            "bank_images": self._images,
            "bank_classes": torch.tensor(self._classes),
            "bank_uncertainties": torch.tensor(self._uncertainties, dtype=torch.float32),
            "bank_ages": torch.tensor(self._ages),
        }

    def offer(self, images: Tensor, classes: Sequence[int], uncertainties: Sequence[float]) -> None:
        """Take in, one after the other, those of the images [batch, ...] that deserve it."""
        places: dict[int, list[int]] = {}
        for place in range(len(self)):
            places.setdefault(self._classes[place], []).append(place)
        born = [-age for age in self._ages]
        newcomers: dict[int, int] = {}
        for now, (label, uncertainty) in enumerate(zip(classes, uncertainties, strict=True)):
            place = self._place_for(label, uncertainty, now, places, born)
            if place < 0:
                continue
            if place < len(self):
                places[self._classes[place]].remove(place)
            else:
                self._size += 1
            places.setdefault(label, []).append(place)
            self._classes[place], self._uncertainties[place], born[place] = label, uncertainty, now
            newcomers[place] = now
        self._ages = [len(classes) - start if place < len(self) else 0 for place, start in enumerate(born)]
        self._copy(images, newcomers)

    def _place_for(
        self, label: int, uncertainty: float, now: int, places: dict[int, list[int]], born: list[int]
    ) -> int:
        """Where a new image goes; -1: nowhere."""
        own = places.get(label, [])
        if len(own) < self.capacity / self._num_classes:
            if len(self) < self.capacity:
                return len(self)
            largest = max(map(len, places.values()))
            candidates = [place for members in places.values() if len(members) == largest for place in members]
        else:
            candidates = own
        by_time, by_uncertainty, capacity = self._time_weight, self._uncertainty_weight, self.capacity
        highest = (by_time / 2.0 + by_uncertainty * uncertainty, math.inf, 0)
        victim = -1
        for place in candidates:
            age = now - born[place]
            score = by_time / (1.0 + math.exp(-age / capacity)) + by_uncertainty * self._uncertainties[place]
            # Of equal scores the later counts, in the order of classes and then of arrival; the newcomer's loses.
            if score >= highest[0] and (score, self._classes[place], born[place]) > highest:
                highest, victim = (score, self._classes[place], born[place]), place
        return victim

    def _copy(self, images: Tensor, newcomers: dict[int, int]) -> None:
        """Put images of the batch, by their number in it, into places of the bank; the old bank stays as it is."""
        if self._images is None:
            self._images = images.new_zeros(self.capacity, *images.shape[1:])
        elif self._images.shape[1:] != images.shape[1:]:
            raise ValueError(
                f"images are of shape {tuple(images.shape[1:])}, those remembered of {tuple(self._images.shape[1:])}: "
                "give all of one size, or call reset() in between"
            )
        else:
            self._images = self._images.clone()
        if newcomers:
            self._images[list(newcomers)] = images[list(newcomers.values())]


def uncertainty_of(logits: Tensor) -> Tensor:
    """Entropy of the softmax of each row, as the bank scores it [batch]."""
    probabilities = logits.softmax(1)
    return -(probabilities * torch.log(probabilities + 1e-6)).sum(1)


@dataclass(frozen=True)
class MemoryTeacher(MeanTeacher):
    """A mean teacher that answers, and teaches from a `MemoryBank`; scale and shift of the normalisation layers adapt.

    BatchNorm layers normalise with statistics that begin as the source's and move with every update, in student and
    teacher apart: mu <- (1 - a) mu + a mu of the remembered images, and so the variance, a = `statistics_momentum`.
    """

    statistics_held: ClassVar[tuple[str, ...]] = ("statistics", "teacher_statistics")
    """The fields that hold the BatchNorm statistics, of the student first."""

    symmetric: bool = False
    """Symmetric cross-entropy between student and teacher; False: that of the student under the teacher."""
    capacity: Count = 64
    """Of the bank, in images."""
    statistics_momentum: Share = 0.05
    """alpha: how fast the statistics of BatchNorm follow the memory's."""
    time_weight: NonNegative = 1.0
    """lambda_t: how much age counts against an image in the bank."""
    uncertainty_weight: NonNegative = 1.0
    """lambda_u: how much uncertainty does."""
    reset_statistics: bool = False
    """Whether a policy's reset takes the statistics of its layers too; False: only `Adapter.reset` does, for the
    source's statistics on a corrupted stream would make ASR reset again at once."""

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        names = require_affine_names(model, type(self).__name__)
        HeldStatistics.install(model, names)
        return names

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        held = HeldStatistics.of(network.module)
        return [
            *super().fields(network, num_classes),
            *(
                Field(name, held.source.clone, "episode" if self.reset_statistics else "stream", layered=True)
                for name in self.statistics_held
            ),
            *MemoryBank.fields(self.capacity),
        ]

    @contextmanager
    def teaching(self, network: Network, state: State) -> Iterator[None]:
        statistics = state.tensor("teacher_statistics")
        with super().teaching(network, state), HeldStatistics.of(network.module).using(statistics):
            yield

    def remember(self, step: Step, state: State) -> MemoryBank:
        """The bank once the batch was offered to it, under the classes that the teacher predicts."""
        bank = MemoryBank(state, step.num_classes, self.time_weight, self.uncertainty_weight)
        logits = step.logits.detach()
        bank.offer(step.images.to(step.network.dtype), logits.argmax(1).tolist(), uncertainty_of(logits).tolist())
        return bank

    def run(self, network: Network, images: Tensor, statistics: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the network as it is, under `statistics` moved towards these images', and those statistics."""
        held = HeldStatistics.of(network.module)
        with held.moving(statistics, exponential(self.statistics_momentum)) as moved:
            return network(images), moved

    @torch.no_grad()
    def run_as(self, values: Tensor, network: Network, images: Tensor, statistics: Tensor) -> tuple[Tensor, Tensor]:
        """`run` with the parameters `values`, without a graph. Not between the student's forward and its backward."""
        with network.arena.holding(values):
            return self.run(network, images, statistics)


def refusable(loss: Tensor, *moved: Tensor) -> Tensor:
    """The loss, or nan where the statistics of a step are not finite, so that the adapter refuses the step."""
    finite = torch.stack([vector.sum() for vector in moved]).isfinite().all()
    return torch.where(finite, loss, torch.nan)
