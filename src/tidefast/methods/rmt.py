"""RMT: a mean teacher with a symmetric loss, features drawn to source prototypes, and replay of source images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional

from tidefast.core.constraints import Count, NonNegative, Positive
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.source import SourceData
from tidefast.core.state import State
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.shared.contrastive import attach_projector, contrast, prototypes
from tidefast.methods.shared.warmup import Pair, WarmTeacher
from tidefast.probes.features import Features


@registry.register("rmt")
@dataclass(frozen=True)
class RMT(WarmTeacher):
    """L = target_weight x L_st + contrastive_weight x L_con + source_weight x L_src.

    L_st = mean_i (SCE(z_i, t_i) + SCE(z'_i, t_i)) / 2, where z and z' are the student's logits of the batch and of an
    augmented view of it, and t the teacher's of the batch. L_con contrasts the features of both views with the nearest
    class prototype of the source. L_src is the cross-entropy of source images to their labels. All layers adapt, and a
    projector of the features with them.
    """

    about: ClassVar[About] = About(
        title="RMT",
        family="With a teacher",
        adapts="all weights, a projector",
        equation=r"""
        L = \frac1{2B} \sum_i \left[ \mathrm{SCE}(z_i, t_i) + \mathrm{SCE}(z'_i, t_i) \right] + L_{con} +
        \frac1B \sum_j H(y_j, z_j), \qquad \xi \leftarrow m\,\xi + (1-m)\,\theta

        L_{con} = -\frac1{3B} \sum_a \frac12 \sum_{p \in P(a)}
        \log \frac{\exp(v_a \cdot v_p / \tau)}{\sum_{b \ne a} \exp(v_a \cdot v_b / \tau)}
        """,
        paper=Paper(
            "Döbler, Marsden and Yang",
            "Robust Mean Teacher for Continual and Gradual Test-Time Adaptation",
            "CVPR 2023",
            code="mariodoebler/test-time-adaptation",
        ),
        needs="a linear classifier head",
    )

    prepared_with: ClassVar[tuple[str, ...]] = (
        *WarmTeacher.prepared_with,
        *("contrastive_weight", "source_weight", "prototype_samples", "replay_samples", "learning_rate", "adam"),
    )

    target_weight: NonNegative = 1.0
    """Of L_st."""
    contrastive_weight: NonNegative = 1.0
    """Of L_con."""
    source_weight: NonNegative = 1.0
    """At 0 no source image is kept for the stream."""
    temperature: Positive = 0.1
    """Of L_con."""
    projection: Count = 128
    """Width of what the projector makes of the features."""
    prototype_samples: Count = 100_000
    """Source images behind the prototypes, about."""
    replay_samples: Annotated[int, Ge(2)] = 1000
    """Source images that are kept; each step draws as many of them as the batch has."""
    learning_rate: NonNegative = 0.01
    """Of the default optimiser, and of the warm-up."""
    adam: bool = False
    """Adam as the default optimiser and that of the warm-up; False: SGD with Nesterov momentum 0.9."""

    @classmethod
    def source_free(cls, **changes: Any) -> RMT:
        """The published variant without replay; prototypes and warm-up still take source data beforehand."""
        return cls(**{"source_weight": 0.0, **changes})

    @classmethod
    def for_cifar(cls, **changes: Any) -> RMT:
        """The published settings for CIFAR-10 and CIFAR-100."""
        return cls(**{"learning_rate": 1e-3, "adam": True, **changes})

    @property
    def needs_source(self) -> str | None:
        if self.contrastive_weight > 0 or self.source_weight > 0:
            return "labelled source images in random order, in batches of the size of the stream's"
        return "source images, unlabelled, in batches of the size of the stream's" if self.warmup_samples else None

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        return [*super().configure(model, statistics), *attach_projector(model, self.projection)]

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.adam:
            return torch.optim.Adam(parameters, lr=self.learning_rate)
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=0.9, nesterov=True)

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        constants = {}
        if self.contrastive_weight > 0:
            constants["prototypes"] = prototypes(network, source, self.prototype_samples)
        if self.source_weight > 0:
            constants["replay_images"], constants["replay_labels"] = source.first(self.replay_samples)
        return constants | self.warm_up(network, source)

    def loss(self, step: Step, state: State) -> Objective:
        network, (student, teacher, features) = step.network, step.from_forward(Pair)
        augmented, other = Features.of(network.module).along(network, self.views(step))
        agreement = 0.5 * (self.divergence(student, teacher) + self.divergence(augmented, teacher))
        loss = self.target_weight * agreement.mean()
        if self.contrastive_weight > 0:
            distance = contrast(network.module, step.constants["prototypes"], features, other, self.temperature)
            loss = loss + self.contrastive_weight * distance
        if self.source_weight > 0:
            loss = loss + self.source_weight * self._replay(step)
        return Objective(loss, selected=len(student))

    def _replay(self, step: Step) -> Tensor:
        """Cross-entropy of kept source images, drawn anew in each step, to their labels."""
        images, labels = step.constants["replay_images"], step.constants["replay_labels"]
        drawn = torch.randperm(len(images), generator=step.generator)[: len(step.images)].to(images.device)
        return functional.cross_entropy(step.network(images[drawn]), labels[drawn])

    def passes(self, selected: float) -> tuple[float, float]:
        replayed = 1.0 if self.source_weight > 0 else 0.0
        return 3.0 + replayed, 2.0 + replayed
