"""Named networks, ours and those of other packages."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import nn

from tidefast.core.registry import Registry


class ModelEntry(ABC):
    """One named network: how to build it, and how to fill it with its trained weights.

    A plug-in subclasses this and registers the subclass.
    """

    name: ClassVar[str] = "unnamed"

    @abstractmethod
    def build(self) -> nn.Module:
        """The network, untrained."""

    @abstractmethod
    def load(self) -> nn.Module:
        """The network with its trained weights, in evaluation mode; images in [0, 1], [N, 3, H, W], to logits."""


registry: Registry[ModelEntry] = Registry("model")


def load(name: str, **options: Any) -> nn.Module:
    """A trained network by name, in evaluation mode; each call returns a network of its own.

    `options` are those of its entry, such as `weights` of the torchvision networks.

    >>> import torch
    >>> load("bundled-resnet")(torch.rand(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    entry = registry.get(name)
    try:
        made = entry(**options)
    except TypeError as error:
        known: list[str] = (
            [field.name for field in dataclasses.fields(entry)] if dataclasses.is_dataclass(entry) else []
        )
        raise ValueError(
            f"the model {name!r} takes the options {', '.join(known) or 'none'}, got {', '.join(options)}"
        ) from error
    return made.load()
