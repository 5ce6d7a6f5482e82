"""LAME: the network stays as it is; predictions of alike images are drawn together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tidefast.core.constraints import Count
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.state import State
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.source import Source
from tidefast.probes.features import Features

Affinity = Literal["rbf", "knn", "linear"]


@registry.register("lame")
@dataclass(frozen=True)
class LAME(Source):
    """Y <- softmax(log q + W Y), repeated: q the source's probabilities, W the affinity of the images' features.

    The fixed point balances what the source says of each image with what it says of its neighbours in the batch.
    Answers with log Y. No parameter changes and nothing is kept, so that resets have nothing to do.
    """

    about: ClassVar[About] = About(
        title="LAME",
        family="Without gradients",
        adapts="nothing",
        equation=r"""
        Y \leftarrow \mathrm{softmax}\left( \log q + W Y \right), \qquad
        W_{ij} = \exp\left( -\frac{\|f_i - f_j\|^2}{2\sigma^2} \right)
        """,
        paper=Paper(
            "Boudiaf and others", "Parameter-free Online Test-time Adaptation", "CVPR 2022", code="fiveai/LAME"
        ),
        needs="a linear classifier head",
    )

    affinity: Affinity = "rbf"
    """W: "rbf" exp(-d^2 / 2 sigma^2), "knn" 1 for the nearest `neighbours`, "linear" the cosine of the features."""
    neighbours: Count = 5
    """Of "rbf", whose sigma is the mean distance to the image of this rank, itself being the first; and of "knn"."""
    iterations: Count = 100
    """At most."""

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        Features.of(model)
        return ()

    @torch.no_grad()
    def forward(self, network: Network, images: Tensor, state: State) -> Tensor:
        logits, features = Features.of(network.module).along(network, images)
        unit = functional.normalize(features.to(logits.dtype), dim=1)
        affinity = _AFFINITIES[self.affinity](unit, self.neighbours)
        return draw_together(logits, affinity, self.iterations)


def draw_together(logits: Tensor, affinity: Tensor, iterations: int = 100) -> Tensor:
    """Log-probabilities [batch, classes] at the fixed point of LAME's update for an affinity [batch, batch].

    >>> unsure_and_sure = torch.tensor([[0.1, 0.0], [0.0, 5.0]])
    >>> draw_together(unsure_and_sure, torch.ones(2, 2)).argmax(1).tolist()
    [1, 1]
    """
    unary = -torch.log(logits.softmax(1) + 1e-10)
    answer, energy = (-unary).log_softmax(1), torch.inf
    for count in range(1, iterations + 1):
        pairwise = affinity @ answer.exp()
        answer = (pairwise - unary).log_softmax(1)
        before, energy = energy, float((answer.exp() * (unary - pairwise + answer)).sum())
        if count >= 3 and abs(energy - before) <= 1e-8 * abs(before):
            break
    return answer


def _rbf(features: Tensor, neighbours: int) -> Tensor:
    distances = torch.cdist(features, features)
    rank = min(neighbours, len(features))
    width = distances.kthvalue(rank, dim=1).values.mean().clamp(min=1e-6)  # identical images are at no distance
    return torch.exp(-0.5 * (distances / width) ** 2)


def _nearest(features: Tensor, neighbours: int) -> Tensor:
    distances = torch.cdist(features, features).fill_diagonal_(torch.inf)
    nearest = distances.topk(min(neighbours, len(features) - 1), largest=False).indices
    return torch.zeros_like(distances).scatter_(1, nearest, 1.0)


def _cosine(features: Tensor, neighbours: int) -> Tensor:
    return features @ features.T


_AFFINITIES: dict[Affinity, Callable[[Tensor, int], Tensor]] = {"rbf": _rbf, "knn": _nearest, "linear": _cosine}
