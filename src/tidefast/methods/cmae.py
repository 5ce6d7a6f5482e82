"""CMAE, Continual-MAE: what the network is least sure of is masked, and must be reconstructed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional

from tidefast.augment.colour import COLOUR_AFFINE_BLUR, call_augmentation
from tidefast.core import losses
from tidefast.core.constraints import NonNegative, Share
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.state import State
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import Method, registry
from tidefast.methods.shared import hog
from tidefast.methods.shared.teacher import weight_and_bias_names
from tidefast.probes.features import attach, head_of
from tidefast.probes.tokens import Tokens

_MASK, _HEAD = "mask_token", "hog_head"


@registry.register("cmae")
@dataclass(frozen=True)
class CMAE(Method):
    """L = mean_i CE(t_i -> z_i) + hog_weight x mean over masked patches of |h - HOG|^2.

    t are the logits of the image as it is, z those with the most uncertain patches replaced by a learnt token: the
    patches whose final tokens vary most over augmented views. h is a linear function of the final tokens of z. The
    answer is t. After each update every weight of the network returns to the source with probability `restore`.
    All layers adapt. Vision transformers only.
    """

    about: ClassVar[About] = About(
        title="CMAE",
        family="Vision transformers",
        adapts="all weights, a head, a mask token",
        equation=r"""
        L = \frac1B \sum_i H(t_i, z_i) + \lambda\,\frac{1}{|M|} \sum_{k \in M} \tfrac1d \lVert h_k - \mathrm{HOG}_k
        \rVert^2, \qquad
        \theta_k \leftarrow \theta_{0,k} \text{ with probability } p
        """,
        paper=Paper(
            "Liu and others",
            "Continual-MAE: Adaptive Distribution Masked Autoencoders for Continual Test-Time Adaptation",
            "CVPR 2024",
            code="RanXu2000/continual-mae",
        ),
    )
    quick: ClassVar[Mapping[str, Any]] = {"uncertainty_views": 2}

    transformers_only: ClassVar[bool] = True

    mask_ratio: Share = 0.5
    """The share of the patches that is masked."""
    hog_weight: NonNegative = 0.5
    """At 0 there are no histograms to reconstruct."""
    uncertainty_views: Annotated[int, Ge(2)] = 10
    """Augmented views over which tokens are compared."""
    restore: Share = 0.01
    """p: probability by which a weight returns to the source after a step."""
    augment: Callable[..., Tensor] | None = None
    """A callable on a batch in [0, 1]; None: colour jitter, small affine motion, flip, blur and noise."""

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_batch()
        layout = Tokens.hook(model, "CMAE").layout
        names = weight_and_bias_names(model, "CMAE")
        _, mask_names = attach(model, _MASK, lambda: MaskToken(layout.embedding_width))
        _, head_names = attach(model, _HEAD, lambda: hog_head(layout.width, layout.patch, layout.channels))
        return [*names, *mask_names, *head_names]

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-5)

    @torch.no_grad()
    def forward(self, network: Network, images: Tensor, state: State) -> Tensor:
        return network(images)

    def loss(self, step: Step, state: State) -> Objective:
        tokens = Tokens.of(step.network.module)
        mask_token, head = (head_of(step.network.module)[1].get_submodule(name) for name in (_MASK, _HEAD))
        assert isinstance(mask_token, MaskToken)
        masked = uncertain(self._spread(step, tokens), self.mask_ratio)
        with tokens.replaced(masked, mask_token.weight), tokens.watching("pixels", "final") as seen:
            logits = step.network(step.images)
        loss = losses.cross_entropy(step.logits, logits).mean()
        final, pixels = seen.final(), seen.pixels()
        if self.hog_weight > 0 and masked.any():
            targets = hog.histograms(pixels, tokens.layout.patch)
            loss = loss + self.hog_weight * functional.mse_loss(head(final[masked]), targets[masked])
        return Objective(loss, selected=len(logits))

    @torch.no_grad()
    def _spread(self, step: Step, tokens: Tokens) -> Tensor:
        """How much the final token of each patch [batch, patches] varies over augmented views."""
        augment, means = self.augment or COLOUR_AFFINE_BLUR, []
        for _ in range(self.uncertainty_views):
            with tokens.watching("final") as seen:
                step.network(call_augmentation(augment, step.images, step.generator))
            means.append(seen.final().float().mean(2))
        return torch.stack(means).var(0)

    def after_step(self, step: Step, state: State) -> None:
        arena = step.network.arena
        own = next(span.start for span in arena.tensors if span.name.endswith(f"{_MASK}.weight"))
        returning = torch.rand(own, generator=step.generator).to(arena.values.device) < self.restore
        arena.values[:own] = torch.where(returning, arena.source[:own], arena.values[:own])

    def passes(self, selected: float) -> tuple[float, float]:
        return self.uncertainty_views + 2.0, 1.0


class MaskToken(nn.Module):
    """What a masked patch is embedded as, [width]; begins at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))


def hog_head(width: int, patch: int, channels: int) -> nn.Linear:
    """Reads the histograms of a patch off its final token."""
    head = nn.Linear(width, hog.values_per_patch(patch, channels))
    nn.init.trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def uncertain(spread: Tensor, share: float) -> Tensor:
    """A mask of the `share` of the patches whose `spread` [batch, patches] is largest in their image.

    >>> uncertain(torch.tensor([[0.1, 0.4, 0.2, 0.3]]), 0.5).tolist()
    [[False, True, False, True]]
    """
    count = int(share * spread.shape[1] + 1e-6)
    most = spread.topk(count, dim=1).indices
    return torch.zeros_like(spread, dtype=torch.bool).scatter(1, most, True)
