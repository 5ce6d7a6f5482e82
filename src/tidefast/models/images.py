"""Images from a path as one model takes them: of its size, with the labels of its classes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tidefast import datasets
from tidefast.core.network import Network
from tidefast.datasets import ClassesGiven, ImageFolder, ImageSet, Subset
from tidefast.datasets.cifar10 import is_cifar10
from tidefast.datasets.tensors import SOURCE_IMAGES, SourceBatches
from tidefast.models.declared import declared_input


def images_for(
    model: nn.Module,
    data: str | os.PathLike[str],
    *,
    size: int | None = None,
    resize: int | None = None,
    classes: ClassesGiven | None = None,
) -> ImageSet | ImageFolder | Subset:
    """The images at a path; their labels are the model's, by the names of their classes or by `classes`.

    Image files are brought to `size`, or else to the size that the model declares.

    >>> from tidefast import models
    >>> images_for(models.load("bundled-resnet"), "bundled").labels.max()
    np.int64(9)
    """
    opened = images_as_taken(model, data, size=size, resize=resize, classes=classes)
    count = number_of_classes(model, datasets.as_tensor(opened[np.array([0])].images))
    return datasets.matched(opened, count, class_names(model))


def images_as_taken(model: nn.Module, data: str | os.PathLike[str], **asked: Any) -> ImageSet | ImageFolder | Subset:
    """The same with labels as they are at the path, for those who do not look at them."""
    given = {key: value for key, value in asked.items() if value is not None}
    if not given.keys() & {"size", "resize"} and _are_files(data):
        declared = declared_input(model)
        given |= {key: getattr(declared, key) for key in ("size", "resize") if getattr(declared, key) is not None}
    return datasets.open(data, **given)


def source_for(model: nn.Module, source: str, images: int = SOURCE_IMAGES) -> str | SourceBatches:
    """Source data as an adapter takes it: a file of `tidefast.prepare` as it is, or batches of the images at a path.

    >>> from tidefast import models
    >>> images, labels = source_for(models.load("bundled-resnet"), "bundled-train", 100)[0]
    >>> images.shape, labels.shape
    (torch.Size([64, 3, 32, 32]), torch.Size([64]))
    """
    return source if datasets.is_prepared(source) else datasets.source_batches(images_for(model, source), images)


def _are_files(data: str | os.PathLike[str]) -> bool:
    return Path(data).is_dir() and not is_cifar10(Path(data))


def number_of_classes(model: nn.Module, images: Tensor) -> int:
    """How many the model answers images [N, 3, H, W] with."""
    network = Network(model)
    with torch.no_grad():
        return network(images.to(network.device)).shape[1]


def class_names(model: nn.Module) -> tuple[str, ...]:
    """What the model calls its outputs: its `classes`, or Hugging Face's `config.id2label`; empty where it does not."""
    classes = getattr(model, "classes", None)
    if isinstance(classes, (list, tuple)) and all(isinstance(name, str) for name in classes):
        return tuple(classes)
    labels = getattr(getattr(model, "config", None), "id2label", None)
    return tuple(map(str, labels.values())) if isinstance(labels, dict) else ()
