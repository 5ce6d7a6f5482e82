"""What methods with a mean teacher share: a student that learns, and a slower copy of it that teaches and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tidefast.augment.colour import COLOUR_AFFINE_BLUR, call_augmentation
from tidefast.core import losses
from tidefast.core.arena import Arena
from tidefast.core.constraints import Share
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.state import Field, State
from tidefast.core.step import Forward, Step
from tidefast.methods.base import Method


@dataclass(frozen=True)
class MeanTeacher(Method):
    """The teacher's parameters follow the student's: xi <- m xi + (1 - m) theta. The teacher answers.

    Both are sets of parameters of one network; a reset takes the same layers of both.
    """

    teacher_momentum: Share = 0.999
    """m."""
    symmetric: bool = True
    """Symmetric cross-entropy, as published for ImageNet; False: that of the student under the teacher, for CIFAR."""
    augment: Callable[..., Tensor] | None = None
    """A callable on a batch in [0, 1]; None: colour jitter, small affine motion, flip, blur and noise."""

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_batch()
        return weight_and_bias_names(model, type(self).__name__)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        return [Field("teacher", lambda: network.arena.source.clone(), layered=True)]

    def forward(self, network: Network, images: Tensor, state: State) -> Tensor | Forward:
        with self.teaching(network, state):
            return network(images)

    @contextmanager
    def teaching(self, network: Network, state: State) -> Iterator[None]:
        """Within the block the network is the teacher, and makes no graph."""
        with torch.no_grad(), network.arena.holding(state.tensor("teacher")):
            yield

    def views(self, step: Step, images: Tensor | None = None) -> Tensor:
        """The batch, or other images of the same kind, augmented."""
        images = step.images if images is None else images
        return call_augmentation(self.augment or COLOUR_AFFINE_BLUR, images, step.generator)

    def divergence(self, student: Tensor, teacher: Tensor) -> Tensor:
        """How far the student's logits are from the teacher's, for each sample."""
        if self.symmetric:
            return losses.symmetric_cross_entropy(student, teacher)
        return losses.cross_entropy(teacher, student)

    def after_step(self, step: Step, state: State) -> None:
        state.tensor("teacher").lerp_(step.network.arena.values, 1.0 - self.teacher_momentum)


def weight_and_bias_names(model: nn.Module, method: str) -> list[str]:
    """Every parameter that its module calls `weight` or `bias`, from input to output.

    >>> weight_and_bias_names(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), "CoTTA")
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """
    names = [name for name, _ in model.named_parameters() if name.rpartition(".")[2] in ("weight", "bias")]
    if not names:
        raise ValueError(f"{method} adapts the weights and biases of all layers, and this network has none")
    return names


def drawn(arena: Arena, chance: float, generator: torch.Generator) -> Tensor:
    """Which adapted numbers are drawn when each is with probability `chance` [len(arena)], true or false."""
    return torch.rand(len(arena), generator=generator).to(arena.values.device) < chance
