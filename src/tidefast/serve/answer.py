"""What one request gets."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Answer:
    """What one request gets."""

    step: int
    """Of the stream, this batch included."""
    size: int
    """Images in the batch that the request was part of."""
    offset: int
    """How many of them came before the request's own."""
    logits: Tensor
    """[images, classes]"""
    classes: list[int]
    probabilities: list[float]
    frozen: bool
    adapted: bool
    lost: int = 0
    """Steps that the stream lost just before, because its file was damaged or gone."""
