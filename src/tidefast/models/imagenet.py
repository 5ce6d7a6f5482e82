"""Networks of torchvision and timm (extra `vision`) and of transformers: those of the published benchmarks, and any."""

from __future__ import annotations

import contextlib
import difflib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import safetensors.torch
import torch
from torch import nn

from tidefast.core.constraints import Constrained, Count
from tidefast.errors import UnknownNameError, how_to_install
from tidefast.models.base import ModelEntry, registry
from tidefast.models.declared import ModelInput, declared_input, with_normalization
from tidefast.models.selection import select_classes

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Torchvision(ModelEntry):
    """A torchvision network with its first ImageNet weights; it takes images in [0, 1] and normalises them itself.

    `weights`: a file with its state dict; left out, torchvision's own IMAGENET1K_V1, from its cache or its server.
    `classes`: "d109" keeps the logits of the 109 classes of IN-D109, in the order of its labels.
    """

    weights: str | None = None
    classes: str | None = None

    architecture: ClassVar[str]

    def __post_init__(self) -> None:
        if self.classes not in (None, "d109"):
            raise ValueError(f"classes must be 'd109' or left out, got {self.classes!r}")

    def build(self) -> nn.Module:
        return self._wrapped(_torchvision().get_model(self.architecture, weights=None))

    def load(self) -> nn.Module:
        if self.weights is None:
            with _fetching(self.architecture):
                return self._wrapped(_torchvision().get_model(self.architecture, weights="IMAGENET1K_V1")).eval()
        network = _torchvision().get_model(self.architecture, weights=None)
        return self._wrapped(filled(network, self.weights, self.architecture)).eval()

    def _wrapped(self, network: nn.Module) -> nn.Module:
        whole = with_normalization(network, ModelInput(224, 256, MEAN, DEVIATION))
        if self.classes is None:
            return whole
        from tidefast.datasets import D109_INDICES

        return select_classes(whole, D109_INDICES)


@registry.register("resnet50")
class ResNet50(Torchvision):
    """ResNet-50 with BatchNorm, trained on ImageNet: the network of the published tables."""

    architecture = "resnet50"


@registry.register("vit_b_16", "vit-b-16")
class ViTB16(Torchvision):
    """ViT-B/16 with LayerNorm, trained on ImageNet."""

    architecture = "vit_b_16"


@dataclass(frozen=True)
class Library(Constrained, ModelEntry):
    """Any classifier of a library, by the library's name for it, with the input that the library declares.

    `architecture`: its name there. `weights`: a file with its state dict (.pth or .safetensors); "random" for none;
    "pretrained" for the library's own, from its cache or its server. `num_classes`: where it is not the library's own.
    """

    architecture: str = ""
    weights: str = "pretrained"
    num_classes: Count | None = None

    example: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.architecture:
            raise ValueError(
                f"model {self.name!r} needs an architecture, as in {self.name}:architecture={self.example}"
            )

    def build(self) -> nn.Module:
        network, declared = self._network(pretrained=False)
        return with_normalization(network, declared)

    def load(self) -> nn.Module:
        network, declared = self._network(pretrained=self.weights == "pretrained")
        if self.weights not in ("pretrained", "random"):
            network = filled(network, self.weights, self.architecture)
        return with_normalization(network, declared).eval()

    def _network(self, *, pretrained: bool) -> tuple[nn.Module, ModelInput]:
        raise NotImplementedError

    @property
    def _head(self) -> dict[str, int]:
        return {} if self.num_classes is None else {"num_classes": self.num_classes}


@registry.register("torchvision")
class TorchvisionNetwork(Library):
    """Any classifier of torchvision, as torchvision:architecture=mobilenet_v2,weights=mine.pth."""

    example = "mobilenet_v2"

    def _network(self, *, pretrained: bool) -> tuple[nn.Module, ModelInput]:
        library = _torchvision()
        try:
            weights = library.get_model_weights(self.architecture).DEFAULT
        except ValueError:
            raise _unknown(self.architecture, library.list_models(module=library), "torchvision") from None
        with _fetching(self.architecture):
            network = library.get_model(self.architecture, weights=weights if pretrained else None, **self._head)
        return network, of_torchvision(weights)


@registry.register("timm")
class TimmNetwork(Library):
    """Any classifier of timm, as timm:architecture=convnext_tiny,weights=mine.safetensors."""

    example = "convnext_tiny"

    def _network(self, *, pretrained: bool) -> tuple[nn.Module, ModelInput]:
        timm = _imported("timm")
        if not timm.is_model(self.architecture):
            raise _unknown(self.architecture, timm.list_models(), "timm")
        with _fetching(self.architecture):
            network = timm.create_model(self.architecture, pretrained=pretrained, **self._head)
        return network, declared_input(network)


@registry.register("transformers")
class TransformersNetwork(Library):
    """An image classifier of Hugging Face transformers: architecture is the folder of a saved one, or its name."""

    example = "folder"

    def _network(self, *, pretrained: bool) -> tuple[nn.Module, ModelInput]:
        transformers = _imported("transformers")
        auto, where = transformers.AutoModelForImageClassification, self.architecture
        try:
            if pretrained:
                network = auto.from_pretrained(where)
            else:
                network = auto.from_config(transformers.AutoConfig.from_pretrained(where))
            images = transformers.ImageProcessingMixin.get_image_processor_dict(where)[0]
        except OSError as error:
            raise OSError(f"no image classifier of transformers at {where!r}: {error}") from error
        size, crop = images.get("size") or {}, images.get("crop_size") or {}
        side = crop.get("height") or size.get("height") or size.get("shortest_edge")
        mean, deviation = (images.get(key) for key in ("image_mean", "image_std"))
        normal = (tuple(mean), tuple(deviation)) if mean and deviation and len(mean) == 3 else (None, None)
        return network, ModelInput(side, size.get("shortest_edge"), *normal)


def of_torchvision(weights: Any) -> ModelInput:
    """What the transforms of a member of a torchvision weights enumeration say."""
    preset = weights.transforms()
    return ModelInput(preset.crop_size[0], preset.resize_size[0], tuple(preset.mean), tuple(preset.std))


def filled(network: nn.Module, file: str, architecture: str) -> nn.Module:
    """The network with the weights of a file."""
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {str(path)!r}: expected a state dict of {architecture}")
    if path.suffix == ".safetensors":
        state = safetensors.torch.load_file(path)
    else:
        state = torch.load(path, map_location="cpu", weights_only=True)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path} holds no weights of {architecture}: {error}") from error
    return network


def _unknown(name: str, known: list[str], library: str) -> UnknownNameError:
    near = difflib.get_close_matches(name, known, n=1)
    return UnknownNameError(f"{library} has no network {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


@contextlib.contextmanager
def _fetching(architecture: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            f"the pretrained weights of {architecture} are not in its cache, and the server cannot be reached "
            f"({error}): give weights= a file with the state dict"
        ) from error


def _torchvision() -> Any:
    return _imported("torchvision").models


def _imported(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        how = how_to_install("vision") if library != "transformers" else "pip install transformers"
        raise ImportError(f"this network comes from {library}, which is not here ({error}): {how}") from error
    except RuntimeError as error:  # compiled for another torch
        raise ImportError(
            f"this network comes from {library}, which does not work with torch {torch.__version__} ({error}): install "
            "the versions of both that belong together, or give a network of your own as module:function"
        ) from error
