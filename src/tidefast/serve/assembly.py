"""From settings to a service: the model, the method and the labels by their names."""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch
from torch import nn

from tidefast import bench, models
from tidefast.bench.assembly import options_of
from tidefast.core.registry import imported
from tidefast.datasets.cifar10 import CLASSES
from tidefast.serve.service import Service
from tidefast.serve.settings import Settings
from tidefast.serve.watch import Watch

_BUNDLED_SIZE = (32, 32)


def open_service(settings: Settings, watch: Watch | None = None) -> Service:
    """The service that settings describe, with its state restored; it takes requests after `Service.start`."""
    experiment = bench.Experiment(
        stream="requests",
        model=settings.model,
        method=settings.method,
        reset=settings.reset,
        optimizer=settings.optimizer,
        seed=settings.seed,
        window=settings.window,
        source=settings.source,
    )
    options = options_of(experiment)
    bundled = experiment.model.name.startswith("bundled-")
    model = bench.model_of(experiment) if settings.weights is None else _with_weights(experiment, settings.weights)
    labels = _labels(settings.labels) if settings.labels is not None else list(CLASSES) if bundled else None
    return Service(settings, model, options, labels=labels, size=_BUNDLED_SIZE if bundled else None, watch=watch)


def _with_weights(experiment: bench.Experiment, weights: str) -> nn.Module:
    """The model, untrained, with the weights of a file."""
    part = experiment.model
    make = imported(part.name) if ":" in part.name else models.registry.get(part.name)
    made = make(**part.options)
    model = made.build() if isinstance(made, models.ModelEntry) else made
    if not isinstance(model, nn.Module):
        raise ValueError(f"--model {part.name} must give a torch.nn.Module, got {type(model).__name__}")
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
                raise ValueError(f"--weights {weights} does not fit {part.name}: {error}") from error
            return model.eval()
    expected = next(iter(model.state_dict()), "nothing")
    raise ValueError(
        f"--weights {weights} does not fit {part.name}: its tensors are {', '.join(list(stored)[:3])}, ..., "
        f"expected {len(model.state_dict())} such as {expected}"
    )


def _labels(path: str) -> list[str]:
    lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    labels = [line for line in lines if line]
    if not labels:
        raise ValueError(f"--labels {path} is empty: write the name of a class on each line")
    return labels
