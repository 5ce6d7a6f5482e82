"""From settings to a service: the model, the method and the labels by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from tidefast import methods, models, resets
from tidefast.core import optim
from tidefast.core.specification import Specification
from tidefast.core.validation import require_device
from tidefast.datasets import open_unlabelled
from tidefast.datasets.cifar10 import CLASSES
from tidefast.datasets.tensors import SourceBatches
from tidefast.models.images import source_for
from tidefast.serve.cluster.layout import require_no_cluster
from tidefast.serve.service import Service
from tidefast.serve.settings import Settings
from tidefast.serve.watch import Watch

_SMALL = (32, 32)
_BUNDLED_SIZES = {"bundled-resnet": _SMALL, "bundled-vit": _SMALL, "bundled-lite0": (128, 128)}


def open_service(settings: Settings, watch: Watch | None = None) -> Service:
    """The service that settings describe, with its state restored; it takes requests after `Service.start`."""
    require_no_cluster(Path(settings.state))
    device = require_device(settings.device)
    canaries = None if settings.canaries is None else open_unlabelled(settings.canaries)
    network = Specification.parse(settings.model)
    size = _BUNDLED_SIZES.get(network.name)
    model = models.load(network) if settings.weights is None else _with_weights(network, settings.weights)
    options = _options(settings, model, canaries)
    labels = _labels(settings.labels) if settings.labels is not None else list(CLASSES) if size == _SMALL else None
    return Service(settings, model.to(device), options, labels=labels, size=size, watch=watch, canaries=canaries)


def _options(settings: Settings, model: nn.Module, canaries: Tensor | None) -> dict[str, Any]:
    """What a fleet takes beside the model, checked; canaries are source data for a policy that can do without."""
    method, policy = methods.base.registry.make(settings.method), resets.base.registry.make(settings.reset)
    source: str | SourceBatches | Tensor | None = None
    if settings.source is None:
        if method.needs_source or policy.needs_source:
            raise ValueError(
                f"{settings.method} with {settings.reset} needs source images: give source= a folder of images or a "
                "file of tidefast.prepare"
            )
        source = canaries if policy.takes_source else None
    elif method.takes_source or policy.takes_source:
        source = source_for(model, settings.source)
    return {
        "method": method,
        "reset": policy,
        "optimizer": None if settings.optimizer is None else optim.factory(settings.optimizer),
        "source": source,
        "seed": settings.seed,
        "window": settings.window,
        "gather": settings.gather or settings.window,
    }


def _with_weights(network: Specification, weights: str) -> nn.Module:
    """The model, untrained, with the weights of a file."""
    model = models.build(network)
    path = Path(weights)
    if path.suffix != ".safetensors" or not path.is_file():
        raise ValueError(f"--weights must be an existing .safetensors file, got {weights!r}")
    try:
        stored = safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"--weights {weights} is no whole .safetensors file: {error}") from error
    # The weights may be those of the network inside, without the normalisation of the pixels around it.
    for candidate in (model, *model.children()):
        if candidate.state_dict().keys() == stored.keys():
            try:
                candidate.load_state_dict(stored)
            except RuntimeError as error:
                raise ValueError(f"--weights {weights} does not fit {network.name}: {error}") from error
            return model.eval()
    expected = next(iter(model.state_dict()), "nothing")
    raise ValueError(
        f"--weights {weights} does not fit {network.name}: its tensors are {', '.join(list(stored)[:3])}, ..., "
        f"expected {len(model.state_dict())} such as {expected}"
    )


def _labels(path: str) -> list[str]:
    lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    labels = [line for line in lines if line]
    if not labels:
        raise ValueError(f"--labels {path} is empty: write the name of a class on each line")
    return labels
