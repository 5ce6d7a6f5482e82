"""EATA: ETA with a Fisher-weighted pull to the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from tidefast.core.constraints import Count, NonNegative
from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.core.state import State
from tidefast.core.step import Step
from tidefast.methods.about import About
from tidefast.methods.base import registry
from tidefast.methods.eta import ETA


@registry.register("eata")
@dataclass(frozen=True)
class EATA(ETA):
    """L = L_ETA + fisher_weight x sum_k F_k (theta_k - theta0_k)^2.

    F is the mean over source batches of the squared gradient of the cross-entropy to the model's own labels.
    """

    about: ClassVar[About] = About(
        title="EATA",
        family="Entropy",
        adapts="scale and shift",
        equation=r"L = L_{ETA} + \lambda \sum_k F_k (\theta_k - \theta_{0,k})^2",
        paper=ETA.about.paper,
    )

    prepared_with: ClassVar[tuple[str, ...]] = ("source_samples",)

    fisher_weight: NonNegative = 2000.0
    """2000 on ImageNet, 1 on CIFAR. At 0 no source images are needed, and EATA is ETA."""
    source_samples: Count = 2000
    """Source images behind the Fisher information, at most."""

    @property
    def needs_source(self) -> str | None:
        return "source images, unlabelled, in batches of the size of the stream's" if self.fisher_weight > 0 else None

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        arena = network.arena
        fisher, seen, count = torch.zeros_like(arena.values), 0, 0
        for images in source:
            images = images[: self.source_samples - seen]
            logits = network(images)
            arena.zero_gradients()
            torch.autograd.backward(functional.cross_entropy(logits, logits.detach().argmax(1)))
            fisher.addcmul_(arena.gradients, arena.gradients)
            seen, count = seen + len(images), count + 1
            if seen >= self.source_samples:
                break
        return {"fisher": fisher / count}

    def regularize(self, step: Step, state: State) -> None:
        if self.fisher_weight > 0:
            arena = step.network.arena
            drift = arena.values - arena.source
            arena.gradients.addcmul_(step.constants["fisher"], drift, value=2.0 * self.fisher_weight)
