"""T3A: the classifier's weights make room for prototypes of the features that the stream brings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tidefast.core import losses
from tidefast.core.constraints import Count
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.state import Field, State
from tidefast.core.step import Forward, Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.source import Source
from tidefast.probes.features import Features, head_of


@registry.register("t3a")
@dataclass(frozen=True)
class T3A(Source):
    """Answers with the features of an image times the prototype of each class, which follows the stream.

    A class is supported by features at length 1: at first by the rows of the classifier that the classifier itself
    puts into that class, then by those images that it does. Each class keeps the `filter_k` supports of which the
    classifier was surest, the batch at hand included, and their sum at length 1 is its prototype. No parameter changes,
    there is no gradient, and a step is one forward pass; the statistics are the source's. A reset, also one of a few
    layers, leaves the classifier's rows alone as supports. An optimiser that is passed is not used.

    f: features, the input of the classifier head; w, b: its weights and bias; H: the entropy of its answer. However
    long the stream, the supports are [classes, `filter_k`, width of the features].
    """

    about: ClassVar[About] = About(
        title="T3A",
        family="Without gradients",
        adapts="class prototypes in place of the classifier",
        equation=r"""
        z_c = f \cdot \frac{\sum_{s \in S_c} s}{\| \sum_{s \in S_c} s \|}, \qquad
        S_c \text{: the } M \text{ of smallest } H \text{ among } \frac{s}{\|s\|},
        \quad s \in \{ w_k, f_i : \arg\max_j (w_j \cdot s + b_j) = c \}
        """,
        paper=Paper(
            "Iwasawa and Matsuo",
            "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization",
            "NeurIPS 2021",
            code="matsuolab/T3A",
        ),
        needs="a linear classifier head",
    )
    quick: ClassVar[Mapping[str, Any]] = {"filter_k": 3}

    filter_k: Count = 20
    """M: supports of each class. Published: the best of 1, 5, 20, 50, 100 and all, chosen for each data set."""

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        Features.of(model)
        return ()

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        head = head_of(network.module)[1]
        rows = head.weight.detach()
        shape = (len(rows), self.filter_k)
        nothing = rows.new_zeros(*shape, rows.shape[1])
        never = rows.new_full(shape, math.log(len(rows)) + 1.0)  # above every entropy, so that any support comes first
        own = functional.linear(rows, rows, None if head.bias is None else head.bias.detach())
        supports, entropies = self._joined(nothing, never, rows, own)
        return [
            Field("supports", supports.clone, shape=tuple(supports.shape)),
            Field("entropies", entropies.clone, shape=shape),
        ]

    @torch.no_grad()
    def forward(self, network: Network, images: Tensor, state: State) -> Forward:
        logits, features = Features.of(network.module).along(network, images)
        held = state.tensor("supports"), state.tensor("entropies")
        features = features.to(held[0])
        supports, entropies = self._joined(*held, features, logits.to(held[0]))
        answer = features @ functional.normalize(supports.sum(1), dim=1).T
        return Forward(answer, for_loss={"supports": supports, "entropies": entropies})

    def _joined(self, supports: Tensor, entropies: Tensor, features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The supports and their entropies, once features [batch, width] have joined those of their classes."""
        supports, entropies = supports.clone(), entropies.clone()
        unit, unsure, classes = functional.normalize(features, dim=1), losses.entropy(logits), logits.argmax(1)
        for label in sorted(set(classes.tolist())):
            joining = classes == label
            candidates = torch.cat([entropies[label], unsure[joining]])
            surest = candidates.argsort(stable=True)[: self.filter_k]
            entropies[label] = candidates[surest]
            supports[label] = torch.cat([supports[label], unit[joining]])[surest]
        return supports, entropies

    def loss(self, step: Step, state: State) -> Objective:
        updates: dict[str, Tensor] = step.from_forward(dict)
        return Objective(loss=None, selected=len(step.logits), updates=updates, step=False)
