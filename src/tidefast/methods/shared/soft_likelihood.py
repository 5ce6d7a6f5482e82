"""The objective that ROID and CMF share: certain and diverse samples, soft likelihood ratio, consistency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tidefast.augment.colour import COLOUR_AFFINE, call_augmentation
from tidefast.core import losses
from tidefast.core.constraints import Count, Positive, Share
from tidefast.core.network import Network
from tidefast.core.state import Field, State
from tidefast.core.step import Asking, Objective, Step, Views
from tidefast.methods.base import Method


@dataclass(frozen=True)
class SoftLikelihood(Method):
    """L = 1/B sum over kept samples of w_i (SLR(z_i) + SCE(z_i, z_i of the augmented image)).

    w_i = exp(diversity x certainty / temperature); samples less diverse than the batch's mean are dropped.
    """

    together: ClassVar[bool] = True

    probs_momentum: Share = 0.9
    """Of the moving average of class probabilities that diversity is measured against."""
    temperature: Positive = 1 / 3
    """T, of the weights exp(diversity x certainty / T)."""
    consistency: bool = True
    """Whether an augmented view must agree."""
    prior_correction: bool | Literal["released"] = True
    """Whether answers are corrected for the classes that the batch holds; "released" on the scale of the published
    code, whose factors have the mean 1 / classes, so that a softmax of the answers says next to nothing."""
    augment: Callable[..., Tensor] | None = None
    """A callable on a batch in [0, 1]; None: colour jitter, small affine motion and flip."""
    batch_size: Count | None = None
    """What the loss is divided by; None: the size of the batch at hand."""
    objective: losses.ObjectiveName = "entropy"
    """"come" puts the opinion entropy in the place of SLR; "entropy" leaves the loss as published."""

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        like = network.arena.values
        return [Field("class_probabilities", lambda: like.new_full((num_classes,), 1.0 / num_classes))]

    def loss(self, step: Step, state: State) -> Asking:
        average = state.tensor("class_probabilities")
        with torch.no_grad():
            probabilities = step.logits.softmax(1)
            diversity = losses.rescale(1.0 - losses.cosine_to(average, probabilities))
            kept = (diversity >= diversity.mean()).nonzero()[:, 0]
            certainty = losses.rescale(-losses.entropy(step.logits))
            weights = torch.exp(diversity * certainty / self.temperature)[kept]
            average = self.probs_momentum * average + (1.0 - self.probs_momentum) * probabilities.mean(0)
        logits = step.logits[kept]
        come = self.objective == "come"
        per_sample = losses.opinion_entropy(logits) if come else losses.soft_likelihood_ratio(logits)
        if self.consistency:
            views = call_augmentation(self.augment or COLOUR_AFFINE, step.images[kept], step.generator)
            per_sample = per_sample + losses.symmetric_cross_entropy(logits, (yield Views(views)))
        loss = (weights * per_sample).sum() / (self.batch_size or len(step.logits))
        return Objective(loss, selected=len(logits), updates={"class_probabilities": average})

    def output(self, logits: Tensor) -> Tensor:
        if not self.prior_correction:
            return logits
        return correct_prior(logits, released=self.prior_correction == "released")

    def passes(self, selected: float) -> tuple[float, float]:
        views = selected if self.consistency else 0.0
        return 1.0 + views, 1.0 + views


def correct_prior(logits: Tensor, *, released: bool = False) -> Tensor:
    """Multiply each class column by its smoothed share of the batch's predictions.

    The factors have the mean 1, so that answers stay on the scale of the logits; the `released` ones have the sum 1.

    >>> correct_prior(torch.eye(4)).tolist() == torch.eye(4).tolist()
    True
    """
    prior, classes = logits.softmax(1).mean(0), logits.shape[1]
    smooth = max(1.0 / logits.shape[0], 1.0 / classes) / prior.max()
    corrected = logits * (prior + smooth) / (1.0 + smooth * classes)
    return corrected if released else corrected * classes
