"""MEMO: each image alone adapts the source model to many views of itself, and then is classified."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from tidefast.augment.augmix import AugMix
from tidefast.core import losses
from tidefast.core.constraints import Count, CountOrZero, NonNegative, Share
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.state import State
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.source import Source


@registry.register("memo")
@dataclass(frozen=True)
class MEMO(Source):
    """L = H(mean over views v of p(v)), one step from the source on all weights, then the clean image's logits.

    Every image of a batch is an episode of its own, and nothing survives it: the answer is a function of the image
    alone, resets have nothing to do, and the adapter's optimiser is not used. The views are drawn from `seed` and the
    image's pixels, so that an image gets the same answer wherever it stands.
    """

    about: ClassVar[About] = About(
        title="MEMO",
        family="Entropy",
        adapts="all weights, for one image",
        equation=r"""
        \theta' = \theta_0 - \eta\,(1 + \mu)\, \nabla_\theta H\!\left( \frac1V \sum_v p_\theta(v) \right), \qquad
        z = f_{\theta'}(x)
        """,
        paper=Paper(
            "Zhang, Levine and Finn",
            "MEMO: Test Time Robustness via Adaptation and Augmentation",
            "NeurIPS 2022",
            code="zhangmarvin/memo",
        ),
        needs="images [batch, channels, height, width]",
        cost="of a batch of views for each image",
    )
    quick: ClassVar[Mapping[str, Any]] = {"views": 2}
    busiest: ClassVar[Mapping[str, Any]] = {"views": 16}

    views: Count = 64
    """V: augmented copies of each image."""
    lr: NonNegative = 2.5e-4
    """eta: learning rate of the one step."""
    momentum: Share = 0.9
    """Of Nesterov's: the first step of a fresh optimiser is (1 + momentum) lr long. 0 is plain descent."""
    alpha: Share = 0.1
    """Share of the views' own statistics in BatchNorm layers, the rest being the source's."""
    crop: Literal["resized", "padded"] = "resized"
    """Crop of a view: "resized" for large images, "padded" for those of CIFAR."""
    seed: CountOrZero = 0
    """Of the views, together with the image's pixels."""

    @classmethod
    def for_cifar(cls, **changes: Any) -> MEMO:
        """The published settings for images of CIFAR's size."""
        return cls(**{"views": 32, "lr": 5e-3, "crop": "padded", **changes})

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_mixture(self.alpha)
        return ()

    def forward(self, network: Network, images: Tensor, state: State) -> Tensor:
        if images.dim() != 4:
            raise ValueError(f"MEMO augments images [batch, channels, height, width], got shape {tuple(images.shape)}")
        weights = {name: weight.detach().requires_grad_() for name, weight in network.module.named_parameters()}
        return torch.cat([self._episode(network, weights, image) for image in images.unbind()])

    def _episode(self, network: Network, weights: Mapping[str, Tensor], image: Tensor) -> Tensor:
        """Logits [1, classes] of an image [channels, height, width], of the model that its own views have adapted."""
        pixels = image.cpu().contiguous().view(torch.uint8).numpy().tobytes()
        generator = torch.Generator().manual_seed(zlib.crc32(pixels, self.seed))
        views = AugMix(self.views, self.crop)(image, generator)
        with torch.enable_grad():
            loss = losses.marginal_entropy(network.with_weights(weights, views))
            gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        rate = (1.0 + self.momentum) * self.lr
        with torch.no_grad():
            moved = {
                name: weight if gradient is None else weight - rate * gradient
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
            }
            return network.with_weights(moved, image[None])

    def passes(self, selected: float) -> tuple[float, float]:
        return self.views + 1.0, float(self.views)
