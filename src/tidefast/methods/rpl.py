"""RPL: robust pseudo-labelling, the model's own hard labels under a loss that forgives wrong ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tidefast.core.constraints import PositiveShare
from tidefast.core.state import State
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import Method, registry


@registry.register("rpl")
@dataclass(frozen=True)
class RPL(Method):
    """L = mean_i (1 - p_i,y^q) / q, where y is the class that sample i is given now."""

    about: ClassVar[About] = About(
        title="RPL",
        family="Entropy",
        adapts="scale and shift",
        equation=r"L = \frac1B \sum_i \frac{1 - p_{i,\hat y_i}^{\,q}}{q}, \qquad \hat y_i = \arg\max_c p_{i,c}",
        paper=Paper(
            "Rusak and others",
            "If your data distribution shifts, use self-learning",
            "TMLR 2022",
            code="bethgelab/robustness",
        ),
    )

    together: ClassVar[bool] = True

    q: PositiveShare = 0.8
    """Between cross-entropy (towards 0) and the mean absolute error (1)."""

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=5e-4, momentum=0.9, nesterov=True)

    def loss(self, step: Step, state: State) -> Objective:
        labels = step.logits.detach().argmax(1)
        per_sample = generalized_cross_entropy(step.logits, labels, self.q)
        return Objective(per_sample.mean(), selected=len(labels))


def generalized_cross_entropy(logits: Tensor, labels: Tensor, q: float) -> Tensor:
    """(1 - p_y^q) / q of each row [batch].

    >>> generalized_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), q=1.0).item()
    0.5
    """
    log_probabilities = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
    return (1.0 - torch.exp(q * log_probabilities)) / q
