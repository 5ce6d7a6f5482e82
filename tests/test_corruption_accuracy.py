"""What the corruptions do to a real classifier: more severity, fewer right answers."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from tidefast import corruptions, datasets, models


@functools.cache
def classifier() -> torch.nn.Module:
    return models.load("bundled-resnet")


@functools.cache
def pictures() -> tuple[np.ndarray, torch.Tensor]:
    images, labels = datasets.bundled()
    chosen = slice(None, None, 10)
    return images[chosen], torch.as_tensor(labels[chosen])


@functools.cache
def accuracy(name: str, severity: float) -> float:
    images, labels = pictures()
    shown = torch.from_numpy(corruptions.corrupt(images, name, severity, seed=0, scale="cifar"))
    with torch.no_grad():
        answers = classifier()(shown.permute(0, 3, 1, 2).float() / 255).argmax(1)
    return float((answers == labels).float().mean())


@pytest.mark.parametrize("name", corruptions.IMAGENET_C)
def test_severity_five_costs_accuracy(name):
    clean, mild, strong = (accuracy(name, severity) for severity in (0.0, 1.0, 5.0))
    assert clean > 0.85
    assert strong < clean
    assert strong <= mild + 0.02


def test_accuracy_falls_steadily_over_all_corruptions():
    means = [np.mean([accuracy(name, s) for name in corruptions.IMAGENET_C]) for s in (0.0, 1.0, 3.0, 5.0)]
    assert means == sorted(means, reverse=True)
    assert means[0] - means[-1] > 0.2
