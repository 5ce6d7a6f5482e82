"""What a model makes of clean images: the first thing to know, and the first sign of wrong labels or preparation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from tidefast.core.network import Network
from tidefast.datasets import LabelledImages, require_match, source_batches
from tidefast.models.images import class_names
from tidefast.streams.seekable import Seekable
from tidefast.streams.stored import Stored

IMAGES = 200
"""How many are looked at, when nobody says."""

_DEVIATIONS = 3.0  # above what guessing has, before it is no longer called guessing


@dataclass(frozen=True)
class CleanAccuracy:
    """How many of so many clean images a model with so many classes knows."""

    correct: int
    images: int
    classes: int

    @property
    def share(self) -> float:
        """The accuracy."""
        return self.correct / self.images

    @property
    def at_chance(self) -> bool:
        """Whether guessing does as well.

        >>> CleanAccuracy(1, 200, 1000).at_chance, CleanAccuracy(21, 200, 10).at_chance
        (True, True)
        >>> CleanAccuracy(4, 200, 1000).at_chance, CleanAccuracy(40, 200, 10).at_chance
        (False, False)
        """
        guessed = self.images / self.classes
        return self.correct <= guessed + _DEVIATIONS * math.sqrt(guessed * (1 - 1 / self.classes))

    @property
    def doubt(self) -> str:
        """What is to be checked when the model is at chance."""
        return (
            f"the source model knows {100 * self.share:.1f} % of {self.images} clean images, which is chance for "
            f"{self.classes} classes: check which class each label stands for (classes=), the size of the images "
            "(size=) and whether the model normalises images in [0, 1] itself"
        )

    def __str__(self) -> str:
        return f"{100 * self.share:.1f} % of {self.images} clean images"


def clean_images(stream: Seekable) -> LabelledImages | None:
    """The clean images that a stream corrupts; None where its images come corrupted from files."""
    data: LabelledImages | None = getattr(stream, "data", None)
    return None if isinstance(getattr(stream, "rendering", None), Stored) else data


def clean_accuracy(model: nn.Module, data: LabelledImages, images: int = IMAGES) -> CleanAccuracy:
    """Of a model (images in [0, 1] to logits) on at most so many images, spread evenly over the set.

    Labels that cannot be the model's are a DatasetError.

    >>> from tidefast import datasets, models
    >>> print(clean_accuracy(models.load("bundled-resnet"), datasets.bundled()))
    91.0 % of 200 clean images
    """
    network = Network(model)
    correct = seen = classes = 0
    with torch.no_grad():
        for pixels, labels in source_batches(data, images):
            logits = network(pixels.to(network.device))
            if not classes:
                classes = logits.shape[1]
                require_match(data.classes, classes, class_names(model))
            correct += int((logits.argmax(1).cpu() == labels).sum())
            seen += len(labels)
    return CleanAccuracy(correct, seen, classes)
