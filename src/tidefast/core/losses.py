"""Losses and per-sample quantities that several methods share. Logits are [batch, classes]."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional


def entropy(logits: Tensor) -> Tensor:
    """Entropy H of the softmax of each row, in nats [batch].

    >>> entropy(torch.zeros(1, 4)).item() == torch.tensor(4.0).log().item()
    True
    """
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def opinion_entropy(logits: Tensor) -> Tensor:
    """COME's entropy of each row [batch]: of the beliefs in the classes and of the mass K = C that no evidence claims.

    The masses (e^z_1, ..., e^z_C, K) / sum are the softmax of the logits with ln K appended. The gradient has no part
    along the logits, so that making them longer is no way to lower it; logits of length 0 keep their whole gradient.

    >>> opinion_entropy(torch.zeros(1, 2)).item()  # beliefs 1/4, 1/4, uncertainty 1/2
    1.0397207736968994
    """
    length = logits.norm(dim=1, keepdim=True)
    length = torch.where(length > 0, length, 1.0)
    held = logits / length * length.detach()
    unclaimed = torch.full_like(held[:, :1], math.log(logits.shape[1]))
    return entropy(torch.cat([held, unclaimed], dim=1))


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy of the mean of the softmax of the rows, a scalar.

    >>> sure_but_opposed = torch.tensor([[9.0, -9.0], [-9.0, 9.0]])
    >>> round(marginal_entropy(sure_but_opposed).item(), 3), round(math.log(2), 3)
    (0.693, 0.693)
    """
    mean = logits.log_softmax(1).logsumexp(0) - math.log(len(logits))
    return -(mean.exp() * mean).sum()


ObjectiveName = Literal["entropy", "come"]

OBJECTIVES: dict[ObjectiveName, Callable[[Tensor], Tensor]] = {"entropy": entropy, "come": opinion_entropy}
"""What methods minimise and select by, by the name of their field `objective`."""


def concentration(logits: Tensor) -> Tensor:
    """C_t (eq. 1 of the ASR paper): negative entropy of the softmax of the mean logits, a scalar.

    >>> concentration(torch.zeros(8, 1000)).item() < concentration(torch.eye(4) * 100).item()
    True
    """
    return -entropy(logits.mean(0, keepdim=True))[0]


def trimmed_concentration(logits: Tensor, count: int) -> Tensor:
    """Concentration without the `count` logits of the largest magnitude: each class's mean is over what is left of it.

    A class of which nothing is left takes no part.

    >>> logits = torch.tensor([[9.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> torch.equal(trimmed_concentration(logits, 1), concentration(torch.tensor([[0.0, 0.5, 0.0]])))
    True
    """
    largest = logits.abs().flatten().topk(count).indices
    kept = torch.ones(logits.numel(), dtype=torch.bool, device=logits.device)
    kept[largest] = False
    kept = kept.view(logits.shape)
    left = kept.sum(0)
    mean = torch.where(kept, logits, 0.0).sum(0)[left > 0] / left[left > 0]
    return -entropy(mean[None])[0]


def soft_likelihood_ratio(logits: Tensor, clip: float = 0.99, eps: float = 1e-5) -> Tensor:
    """Soft likelihood ratio of each row [batch]: negative expected log odds; certain entries pass no gradient."""
    probabilities = logits.softmax(1).clamp(max=clip)
    return -(probabilities * torch.log(probabilities / (1.0 - probabilities) + eps)).sum(1)


def cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """Cross-entropy of each row of `logits` under the softmax of `target`, both logits [batch]."""
    return -(target.softmax(1) * logits.log_softmax(1)).sum(1)


def symmetric_cross_entropy(logits: Tensor, other: Tensor) -> Tensor:
    """Mean of the cross-entropies in both directions [batch]."""
    return 0.5 * (cross_entropy(logits, other) + cross_entropy(other, logits))


def cosine_to(reference: Tensor, probabilities: Tensor) -> Tensor:
    """Cosine similarity of each row to one reference vector [batch]."""
    return functional.cosine_similarity(reference[None], probabilities, dim=1)


def rescale(values: Tensor) -> Tensor:
    """Shift and scale to [0, 1]; all ones where all values are equal, so that nothing is divided by zero.

    >>> rescale(torch.tensor([1.0, 3.0, 2.0])).tolist(), rescale(torch.tensor([4.0])).tolist()
    ([0.0, 1.0, 0.5], [1.0])
    """
    low, high = values.min(), values.max()
    return torch.where(high > low, (values - low) / torch.where(high > low, high - low, 1.0), 1.0)
