"""SANTA: normalisation layers learn to agree with the source model, features are drawn to its class prototypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tidefast.augment.colour import COLOUR_AFFINE_BLUR, call_augmentation
from tidefast.core import losses
from tidefast.core.constraints import Count, NonNegative, Positive
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.source import SourceData
from tidefast.core.state import State
from tidefast.core.step import Forward, Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import Method, registry
from tidefast.methods.shared.contrastive import attach_projector, contrast, prototypes
from tidefast.probes.features import Features


class Anchored(NamedTuple):
    """What the loss compares with an augmented view."""

    anchor: Tensor
    """The source model's logits of the batch."""
    features: Tensor
    """Of the batch, attached to the graph."""


@registry.register("santa")
@dataclass(frozen=True)
class SANTA(Method):
    """L = target_weight x mean_i (CE(z_i -> a_i) + CE(z'_i -> a_i)) / 2 + contrastive_weight x L_con.

    CE(z -> a) is the cross-entropy of a under the softmax of z: the adapted network's probabilities of the batch (z)
    and of an augmented view (z') weigh the source model's log-probabilities (a). L_con is RMT's. Scale and shift of the
    normalisation layers adapt, and a projector of the features.
    """

    about: ClassVar[About] = About(
        title="SANTA",
        family="With a teacher",
        adapts="scale and shift, a projector",
        equation=r"L = \frac1{2B} \sum_i \left[ H(z_i, a_i) + H(z'_i, a_i) \right] + L_{con}",
        paper=Paper(
            "Chakrabarty, Sreenivas and Biswas",
            "SANTA: Source Anchoring Network and Target Alignment for Continual Test Time Adaptation",
            "TMLR 2023",
            code="goirik-chakrabarty/SANTA",
        ),
        needs="a linear classifier head",
    )

    prepared_with: ClassVar[tuple[str, ...]] = ("prototype_samples",)

    target_weight: NonNegative = 1.0
    """Of the agreement with the source model."""
    contrastive_weight: NonNegative = 1.0
    """At 0 no source data is needed."""
    temperature: Positive = 0.1
    """Of L_con."""
    projection: Count = 128
    """Width of what the projector makes of the features."""
    prototype_samples: Count = 100_000
    """Source images behind the prototypes, about."""
    augment: Callable[..., Tensor] | None = None
    """A callable on a batch in [0, 1]; None: colour jitter, small affine motion, flip, blur and noise."""

    @property
    def needs_source(self) -> str | None:
        needed = "labelled source images in random order, in batches of the size of the stream's"
        return needed if self.contrastive_weight > 0 else None

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        names = super().configure(model, statistics)
        Features.of(model)
        return [*names, *attach_projector(model, self.projection)]

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True)

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        return {"prototypes": prototypes(network, source, self.prototype_samples)}

    def forward(self, network: Network, images: Tensor, state: State) -> Forward:
        anchor = network.source_logits(images)
        logits, features = Features.of(network.module).along(network, images)
        return Forward(logits, for_loss=Anchored(anchor, features))

    def predict(self, network: Network, images: Tensor, state: State) -> Tensor:
        return network(images)

    def loss(self, step: Step, state: State) -> Objective:
        network, (anchor, features) = step.network, step.from_forward(Anchored)
        views = call_augmentation(self.augment or COLOUR_AFFINE_BLUR, step.images, step.generator)
        augmented, other = Features.of(network.module).along(network, views)
        agreement = 0.5 * (losses.cross_entropy(step.logits, anchor) + losses.cross_entropy(augmented, anchor))
        loss = self.target_weight * agreement.mean()
        if self.contrastive_weight > 0:
            distance = contrast(network.module, step.constants["prototypes"], features, other, self.temperature)
            loss = loss + self.contrastive_weight * distance
        return Objective(loss, selected=len(step.logits))

    def passes(self, selected: float) -> tuple[float, float]:
        return 3.0, 2.0
