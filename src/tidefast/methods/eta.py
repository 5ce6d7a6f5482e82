"""ETA: entropy minimisation on samples that are reliable and not redundant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

from tidefast.core import losses
from tidefast.core.constraints import Positive, Share
from tidefast.core.network import Network
from tidefast.core.state import Field, State
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import Method, registry

E = TypeVar("E", bound="ETA")


@registry.register("eta")
@dataclass(frozen=True)
class ETA(Method):
    """L = mean over S of exp(E0 - H_i) H_i.

    S holds the samples with H_i < E0 whose probabilities are unlike the memory of those used before
    (|cos| < similarity_margin). Nothing selected: no step at all, not even of the momentum.
    """

    about: ClassVar[About] = About(
        title="ETA",
        family="Entropy",
        adapts="scale and shift",
        equation=r"""
        L = \frac1{|S|} \sum_{i \in S} e^{E_0 - H_i} H_i, \qquad S = \{ i : H_i < E_0,\ |\cos(p_i, m)| < d \}
        """,
        paper=Paper(
            "Niu and others",
            "Efficient Test-Time Model Adaptation without Forgetting",
            "ICML 2022",
            code="mr-eggplant/EATA",
        ),
    )
    together: ClassVar[bool] = True
    busiest: ClassVar[Mapping[str, Any]] = {"entropy_margin": 1.1, "similarity_margin": 2.0}

    entropy_margin: Positive = 0.4
    """E0 as a multiple of ln(classes)."""
    similarity_margin: Positive = 0.05
    """d; 0.05 suits 1000 classes, 0.1 a hundred, 0.4 ten."""
    memory_momentum: Share = 0.9
    """Of the moving average m of the probabilities used."""
    objective: losses.ObjectiveName = "entropy"
    """H, as loss and for selecting: "entropy" of the softmax, or "come", the opinion entropy."""

    @classmethod
    def for_classes(cls: type[E], num_classes: int, **changes: Any) -> E:
        """The published margins for a number of classes: CIFAR-10, CIFAR-100 or ImageNet sized."""
        margin = 0.4 if num_classes < 50 else 0.1 if num_classes < 500 else 0.05
        return cls(**{"similarity_margin": margin, **changes})

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        return [Field("memory", lambda: None, shape=(num_classes,))]

    def loss(self, step: Step, state: State) -> Objective:
        margin = self.entropy_margin * math.log(step.num_classes)
        entropy = losses.OBJECTIVES[self.objective](step.logits)
        with torch.no_grad():
            chosen = entropy < margin
            probabilities = step.logits.softmax(1)
            memory = state.optional_tensor("memory")
            if memory is not None:
                chosen &= losses.cosine_to(memory, probabilities).abs() < self.similarity_margin
            samples = chosen.nonzero()[:, 0]
            if len(samples) == 0:
                return Objective(loss=None, selected=0, step=False)
            mean = probabilities[samples].mean(0)
            if memory is not None:
                mean = self.memory_momentum * memory + (1.0 - self.memory_momentum) * mean
        kept = entropy[samples]
        loss = (torch.exp(margin - kept.detach()) * kept).mean()
        return Objective(loss, selected=len(samples), updates={"memory": mean})
