"""Named networks, ours and those of other packages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import nn

from tidefast.core.registry import Registry
from tidefast.core.specification import Given, Specification, called
from tidefast.errors import SpecificationError
from tidefast.models.declared import with_normalization


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


registry: Registry[ModelEntry] = Registry(
    "model", ModelEntry, own="a network of your own is module:function, which returns it"
)


def load(name: Given, **options: Any) -> nn.Module:
    """A trained network by name, in evaluation mode; each call returns a network of its own.

    `options` are those of its entry, such as `weights` of the torchvision networks; they may stand in the name, as in
    "resnet50:classes=d109". `module:function` returns a network, which gets the normalisation that it declares (see
    `ModelInput`; timm's do) in front of it, and is taken as it is where it declares none.

    >>> import torch
    >>> load("bundled-resnet")(torch.rand(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    entry = _found(name, options)
    return entry.load() if isinstance(entry, ModelEntry) else with_normalization(entry)


def build(name: Given, **options: Any) -> nn.Module:
    """The network that `load` would return, untrained; what `module:function` returns, as `load` has it."""
    entry = _found(name, options)
    return entry.build() if isinstance(entry, ModelEntry) else with_normalization(entry)


def _found(name: Given, options: dict[str, Any]) -> ModelEntry | nn.Module:
    specification = Specification.parse(name).but(**options)
    what = f"model {specification.name!r}"
    entry: object = called(what, registry.bound(specification), somebodys=specification.is_address)
    if not isinstance(entry, (ModelEntry, nn.Module)):
        raise SpecificationError(f"{what} must give a torch.nn.Module, got {type(entry).__name__}")
    return entry
