"""REM: entropies ranked by how much of the image is hidden, and predictions that hold when it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tidefast.core import losses
from tidefast.core.constraints import Count, NonNegative, Share
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics, require_affine_names
from tidefast.core.state import State
from tidefast.core.step import Forward, Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import Method, registry
from tidefast.probes.tokens import Tokens


@registry.register("rem")
@dataclass(frozen=True)
class REM(Method):
    """L = sum over i > j of mean CE(z_j -> z_i) + rank_weight x mean relu(H(z_j) - H(z_i) + margin ln C).

    z_i are the logits of view i, in which the share i x `hidden_step` of the patches is hidden: those that the class
    token attends to most in the last block. In the first term only z_i learns, in the second only z_j. Vision
    transformers only.
    """

    about: ClassVar[About] = About(
        title="REM",
        family="Vision transformers",
        adapts="scale and shift",
        equation=r"""
        L = \sum_{j < i} \frac1B \sum_n H(z^j_n, z^i_n) + \lambda \sum_{j < i} \frac1B \sum_n
        \max\left(0,\; H(z^j_n) - H(z^i_n) + m \ln C\right)
        """,
        paper=Paper(
            "Han, Na and Hwang",
            "Ranked Entropy Minimization for Continual Test-Time Adaptation",
            "ICML 2025",
            code="pilsHan/rem",
        ),
    )

    transformers_only: ClassVar[bool] = True

    views: Count = 3
    """The whole image among them; with 1 there is nothing to compare, and nothing is learnt."""
    hidden_step: Share = 0.1
    """Share of the patches that each view hides more than the one before."""
    rank_weight: NonNegative = 1.0
    """lambda, of the ranking."""
    margin: NonNegative = 0.0
    """Of the ranking, as a multiple of ln(classes)."""
    skip: Share = 0.25
    """The share of the blocks, the last ones, that stay as they are; so does the final norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.views - 1) * self.hidden_step >= 1.0:
            raise ValueError(
                f"{self.views} views in steps of {self.hidden_step} hide the whole image: lower views or hidden_step"
            )

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_batch()
        layout = Tokens.hook(model, "REM").layout
        adapted = max(1, int((1.0 - self.skip) * len(layout.blocks) + 1e-6))
        first_skipped = [*layout.blocks[adapted:], layout.norm][0]
        before: set[str] = set()
        for name, module in model.named_modules():
            if module is first_skipped:
                break
            before.add(name)
        return require_affine_names(model, "REM", before.__contains__)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3)

    def forward(self, network: Network, images: Tensor, state: State) -> Forward:
        with Tokens.of(network.module).watching("attention") as seen:
            logits = network(images)
        return Forward(logits, for_loss=seen.attention().argsort(dim=1))

    def predict(self, network: Network, images: Tensor, state: State) -> Tensor:
        return network(images)

    def loss(self, step: Step, state: State) -> Objective:
        if self.views == 1:
            return Objective(loss=None, selected=0, step=False)
        tokens, ranked = Tokens.of(step.network.module), step.from_forward(Tensor)
        views = [step.logits]
        for index in range(1, self.views):
            with tokens.only(ranked[:, : patches_kept(ranked.shape[1], index * self.hidden_step)]):
                views.append(step.network(step.images))
        return Objective(ranked_loss(views, self.rank_weight, self.margin), selected=len(step.images))

    def passes(self, selected: float) -> tuple[float, float]:
        share = sum(1.0 - index * self.hidden_step for index in range(self.views))
        return share, share


def patches_kept(patches: int, hidden: float) -> int:
    """How many of the patches remain when the share `hidden` goes.

    >>> [patches_kept(196, hidden) for hidden in (0.1, 0.2)], patches_kept(576, 0.2)
    ([176, 156], 460)
    """
    return max(1, math.floor(patches * (1.0 - hidden) + 1e-6))


def ranked_loss(views: Sequence[Tensor], rank_weight: float = 1.0, margin: float = 0.0) -> Tensor:
    """REM's loss for logits [batch, classes] of views of which each hides more than the one before.

    >>> alike = [torch.zeros(1, 2)] * 3
    >>> round(ranked_loss(alike).item() / math.log(2), 6)
    3.0
    """
    margin *= math.log(views[0].shape[1])
    entropies = [losses.entropy(view) for view in views]
    loss = views[0].new_zeros(())
    for more in range(1, len(views)):
        for less in range(more):
            rise = entropies[less] - entropies[more].detach() + margin
            loss = loss + losses.cross_entropy(views[less].detach(), views[more]).mean()
            loss = loss + rank_weight * rise.relu().mean()
    return loss
