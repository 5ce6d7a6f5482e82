"""What RMT and DPLOT share: a mean teacher that is warmed up on source images, and answers along with its student."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tidefast.core.constraints import Count, CountOrZero
from tidefast.core.network import START, Network
from tidefast.core.normalization import Statistics
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.methods.shared.kept import Kept
from tidefast.methods.shared.teacher import MeanTeacher
from tidefast.probes.features import Features

_TEACHER_START = "teacher_start"


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
        Kept.install(model)
        return names

    def warmup_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser of the warm-up; it is dropped afterwards."""
        return self.optimizer(parameters)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        start = network.constants.get(_TEACHER_START, network.arena.source)
        return [Field("teacher", start.clone, layered=True)]

    def shown(self, images: Tensor) -> Tensor:
        """What student and teacher see of a batch: whole copies of it, one after the other."""
        return images

    def forward(self, network: Network, images: Tensor, state: State) -> Tensor:
        shown = self.shown(images)
        with torch.no_grad(), network.arena.holding(state.tensor("teacher")):
            teacher = network(shown)
        student = network(shown)
        Kept.of(network.module).keep(student, teacher, Features.of(network.module).take())
        return torch.stack(torch.split(0.5 * (student + teacher), len(images))).mean(0)

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
        return {START: arena.values.clone(), _TEACHER_START: teacher}

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
