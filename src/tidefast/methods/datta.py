"""DATTA: draw the normalisation layers' outputs to those of source data, and start anew when they leave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tidefast.core import losses
from tidefast.core.constraints import Positive, Share
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics, require_affine_names
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.core.step import Forward, Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import Method, registry
from tidefast.probes.held_statistics import HeldStatistics, Rule
from tidefast.probes.outputs import MEANS, VARIANCES, OutputMoments, Outputs, of_source
from tidefast.resets.base import Reset
from tidefast.resets.distribution import Distribution


class MeasuredMoments(NamedTuple):
    """What the loss needs of a pass."""

    moments: OutputMoments
    """Of the layers' outputs, attached to the graph."""
    statistics: Tensor | None
    """Those that BatchNorm layers made of the batch, to be kept; None where they used what they had."""


@registry.register("datta")
@dataclass(frozen=True)
class DATTA(Method):
    """L = sum over layers of mean |m - M| + mean |v - V|, plus the mean entropy of the samples that are confident.

    m and v are the mean and variance of each image's channels in a normalisation layer's output, M and V their
    averages over source images. BatchNorm layers take statistics between the source's and those of the first batch
    after a reset, and keep them until the next. That comes, with `detect`, when the first part of the loss jumps.
    """

    about: ClassVar[About] = About(
        title="DATTA",
        family="Domains",
        adapts="scale and shift",
        equation=r"""
        L = \sum_l \left[ \frac1{N C_l} \sum_{n,c} |m_{lnc} - M_{lc}| + \frac1{N C_l} \sum_{n,c} |v_{lnc} - V_{lc}|
        \right]
        + \frac1{|S|} \sum_{i \in S} H(z_i), \qquad S = \{ i : \max p_i > \theta \}

        \mu = (1-\alpha)\,\overline{x} + \alpha\,\mu_0, \qquad
        \sigma^2 = (1-\alpha)\,\overline{(x-\mu)^2} + \alpha\,\sigma_0^2
        \qquad \text{(the first batch after a reset)}
        """,
        paper=Paper(
            "Wang and others",
            "Distribution Alignment for Fully Test-Time Adaptation with Dynamic Online Data Streams",
            "ECCV 2024",
            code="WZq975/DA-TTA",
        ),
    )

    prepared_with: ClassVar[tuple[str, ...]] = ("source_share",)

    source_share: Share = 0.75
    """alpha: of the source in the statistics. 0.75 on ImageNet, 0.5 on CIFAR; at 1 they are the source's."""
    confidence: Share = 0.8
    """theta: a sample is confident when its largest probability is above it."""
    detect: bool = True
    """Whether `resets.Distribution` is part of the method."""
    threshold: Positive = 1.1
    """tau, of `resets.Distribution`."""

    @classmethod
    def for_cifar(cls, **changes: Any) -> DATTA:
        """The published settings for CIFAR-10 and CIFAR-100; the optimiser there is Adam with 1e-4."""
        return cls(**{"source_share": 0.5, **changes})

    @property
    def needs_source(self) -> str | None:
        return "source images, unlabelled, in batches of the size of the stream's"

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        names = require_affine_names(model, type(self).__name__)
        HeldStatistics.install(model, names)
        Outputs.of(model)
        return names

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-5)

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        anew = State(self.fields(network, 0))
        return of_source(Outputs.of(network.module), source, lambda images: self.predict(network, images, anew))

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        return [Field("statistics", lambda: None, shape=HeldStatistics.of(network.module).source.shape)]

    def forward(self, network: Network, images: Tensor, state: State) -> Forward:
        with Outputs.of(network.module).measuring(graph=True) as moments:
            logits, made = self._run(network, images, state)
        return Forward(logits, for_loss=MeasuredMoments(moments, made))

    def predict(self, network: Network, images: Tensor, state: State) -> Tensor:
        return self._run(network, images, state)[0]

    def _run(self, network: Network, images: Tensor, state: State) -> tuple[Tensor, Tensor | None]:
        """Logits, and the statistics where the batch made any."""
        held, statistics = HeldStatistics.of(network.module), state.optional_tensor("statistics")
        if statistics is None and len(images) == 1:  # too little to make any of
            statistics = held.source
        if statistics is None:
            with held.moving(held.source, between(self.source_share)) as made:
                return network(images), made
        with held.using(statistics):
            return network(images), None

    def loss(self, step: Step, state: State) -> Objective:
        moments, made = step.from_forward(MeasuredMoments)
        loss = moments.distance(step.constants[MEANS], step.constants[VARIANCES])
        confident = step.logits.detach().softmax(1).amax(1) > self.confidence
        if confident.any():
            loss = loss + losses.entropy(step.logits[confident]).mean()
        updates = {} if made is None else {"statistics": made}
        return Objective(loss, selected=len(step.logits), updates=updates)

    def own_reset(self) -> Reset | None:
        return Distribution(self.threshold) if self.detect else None


def between(source_share: float) -> Rule:
    """(1 - source_share) batch + source_share source; the batch's second moment is taken about the mixed mean.

    >>> rule = between(0.5)
    >>> rule(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0]), torch.tensor([4.0]))
    (tensor([1.]), tensor([3.]))
    """

    @torch.no_grad()
    def rule(inputs: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        places = [0, *range(2, inputs.dim())]
        inputs = inputs.to(mean.dtype)
        mixed = torch.lerp(inputs.mean(places, keepdim=True), mean.view(1, -1, *[1] * len(places[1:])), source_share)
        second = (inputs - mixed).square_().mean(places)
        return mixed.flatten(), torch.lerp(second, variance, source_share)

    return rule
