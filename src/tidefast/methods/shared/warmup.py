"""What RMT and DPLOT share: a mean teacher that is warmed up on source images, and answers along with its student."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tidefast.core.constraints import Count, CountOrZero
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.core.step import Forward
from tidefast.methods.shared.teacher import MeanTeacher
from tidefast.probes.features import Features

_START, _TEACHER_START = "start", "teacher_start"


class Pair(NamedTuple):
    """What student and teacher make of the same images."""

    student: Tensor
    """Logits, attached to the graph."""
    teacher: Tensor
    """Logits."""
    features: Tensor
    """The student's, attached to the graph."""


@dataclass(frozen=True)
class WarmTeacher(MeanTeacher):
    """Answers with the mean of the student's and the teacher's logits.

    Before the stream both train on source images: mean_i SCE(z_i, t_i), at a rate that rises linearly to the
    optimiser's own. Where that leaves them, student and teacher start, and return to at a reset.
    """

    prepared_with: ClassVar[tuple[str, ...]] = ("teacher_momentum", "symmetric", "warmup_samples", "warmup_passes")

    warmup_samples: CountOrZero = 50_000
    """Images of the warm-up; 0: there is none."""
    warmup_passes: Count = 5
    """The warm-up goes over the source data at most so often, however little of it there is."""

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        names = super().configure(model, statistics)
        Features.of(model)
        return names

    def warmup_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser of the warm-up; it is dropped afterwards."""
        return self.optimizer(parameters)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        start = network.constants.get(_TEACHER_START, network.arena.source)
        return [Field("teacher", start.clone, layered=True)]

    def start(self, constants: Mapping[str, Tensor]) -> Tensor | None:
        return constants.get(_START)

    def shown(self, images: Tensor) -> Tensor:
        """What student and teacher see of a batch: whole copies of it, one after the other."""
        return images

    def forward(self, network: Network, images: Tensor, state: State) -> Forward:
        shown = self.shown(images)
        with self.teaching(network, state):
            teacher = network(shown)
        student, features = Features.of(network.module).along(network, shown)
        logits = torch.stack(torch.split(0.5 * (student + teacher), len(images))).mean(0)
        return Forward(logits, for_loss=Pair(student, teacher, features))

    def warm_up(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        """Where student and teacher start, as constants; the arena is left there."""
        steps = self._warmup_steps(source)
        if steps == 0:
            return {}
        arena = network.arena
        teacher = arena.values.clone()
        optimizer = self.warmup_optimizer([arena.parameter])
        rate = optimizer.param_groups[0]["lr"]
        for number, (images, _) in enumerate(itertools.islice(source.endless(), steps), start=1):
            optimizer.param_groups[0]["lr"] = rate * number / steps
            with torch.no_grad(), arena.holding(teacher):
                target = network(images)
            arena.zero_gradients()
            torch.autograd.backward(self.divergence(network(images), target).mean())
            optimizer.step()
            teacher.lerp_(arena.values, 1.0 - self.teacher_momentum)
        return {_START: arena.values.clone(), _TEACHER_START: teacher}

    def _warmup_steps(self, source: SourceData) -> int:
        """One for each of the source's batches in `warmup_samples`, in no more than `warmup_passes` passes."""
        if self.warmup_samples == 0:
            return 0
        wanted = available = 0
        for images in source:
            wanted = wanted or max(self.warmup_samples // len(images), 1)
            available += self.warmup_passes
            if available >= wanted:
                break
        return min(wanted, available)
