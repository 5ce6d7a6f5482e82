"""Whether the probabilities of answers can be trusted: what is kept of each batch, and what it amounts to.

The confidence of an answer is the largest probability of its softmax. Answers are put into bins by their confidence; in
each, confidence and accuracy are compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tidefast.bench.metrics import Counts, Floats

BINS = 15
"""Of equal width, from 0 to 1."""
COLUMNS = ("likelihood_loss", "brier_score", "bin_images", "bin_correct", "bin_confidence")
"""What is kept of a batch: sums over its images, in all and in each bin."""


def kept_of(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """The `COLUMNS` of a batch with logits [batch, classes] and labels [batch].

    >>> kept = kept_of(torch.tensor([[0.0, 0.0], [30.0, 0.0]]), torch.tensor([0, 0]))
    >>> round(kept["likelihood_loss"], 4), kept["brier_score"], kept["bin_images"][7], kept["bin_correct"][14]
    (0.6931, 0.5, 1, 1)
    """
    logs = logits.double().log_softmax(1)
    probabilities = logs.exp()
    confidence, predicted = probabilities.max(1)
    truth = torch.nn.functional.one_hot(labels, logits.shape[1]).to(logs)
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    images, correct = (
        torch.bincount(bins, weights, minlength=BINS).round().int().tolist()
        for weights in (None, (predicted == labels).double())
    )
    return {
        "likelihood_loss": -float((logs * truth).sum()),
        "brier_score": float((probabilities - truth).square().sum()),
        "bin_images": images,
        "bin_correct": correct,
        "bin_confidence": torch.bincount(bins, confidence, minlength=BINS).tolist(),
    }


@dataclass(frozen=True, eq=False)
class Reliability:
    """What the answers of a stream were worth as probabilities; sums over its images, in each bin and in all."""

    images: Counts
    """[bins]"""
    correct: Counts
    confidence: Floats
    likelihood_loss: float
    brier_score: float

    @property
    def total(self) -> int:
        """Images."""
        return int(self.images.sum())

    @property
    def error(self) -> float:
        """Expected calibration error (ECE): how far confidence and accuracy are apart in the bin of an answer, mean.

        >>> half_sure = Reliability(np.array([10]), np.array([9]), np.array([5.0]), 0.0, 0.0)
        >>> half_sure.error, half_sure.mean_confidence
        (0.4, 0.5)
        """
        return float(np.abs(self.correct - self.confidence).sum()) / self.total if self.total else math.nan

    @property
    def error_by_chance(self) -> float:
        """About what `error` would be, of so many images, if every probability were right.

        >>> round(Reliability(np.array([100]), np.array([50]), np.array([50.0]), 0.0, 0.0).error_by_chance, 4)
        0.0399
        """
        share = self.confidence / np.maximum(self.images, 1)
        spread = np.sqrt(self.images * share * (1 - share)).sum()
        return math.sqrt(2 / math.pi) * float(spread) / self.total if self.total else math.nan

    @property
    def accuracy(self) -> float:
        """Share of the answers that are right."""
        return int(self.correct.sum()) / self.total if self.total else math.nan

    @property
    def mean_confidence(self) -> float:
        """Above the accuracy the model is too sure of itself, below it not sure enough."""
        return float(self.confidence.sum()) / self.total if self.total else math.nan

    @property
    def negative_log_likelihood(self) -> float:
        """Of the true class, mean, in nats; ln(classes) for one who knows nothing, 0 at best."""
        return self.likelihood_loss / self.total if self.total else math.nan

    @property
    def brier(self) -> float:
        """Squared distance of the probabilities from the truth, summed over classes, mean; 0 at best, 2 at worst."""
        return self.brier_score / self.total if self.total else math.nan

    def summary(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "ece": self.error,
            "nll": self.negative_log_likelihood,
            "brier": self.brier,
            "mean_confidence": self.mean_confidence,
        }
