"""From an experiment to its parts; a process keeps the last few models and streams, for the next run."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tidefast import datasets, methods, models, resets, streams
from tidefast.adapter import Adapter
from tidefast.bench.experiment import Experiment
from tidefast.core.registry import Registry, imported
from tidefast.core.specification import Specification
from tidefast.errors import UnknownNameError
from tidefast.preparation import Preparation, prepare

T = TypeVar("T")

_ORDERS = {
    "as-given": streams.AsGiven,
    "by-label": streams.ByLabel,
    "dirichlet": streams.Dirichlet,
    "shuffled": streams.Shuffled,
    "slot-dirichlet": streams.SlotDirichlet,
}
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    name.lower(): found
    for name, found in vars(torch.optim).items()
    if isinstance(found, type) and issubclass(found, torch.optim.Optimizer) and found is not torch.optim.Optimizer
}
_REMEMBERED = 2


def model_of(experiment: Experiment) -> nn.Module:
    """The trained network; one copy for all the runs of a process, which an adapter never changes."""
    return _model(_text(experiment.model))


def stream_of(experiment: Experiment, batches: Path | None = None) -> streams.Seekable:
    """The stream, from its beginning; one copy for all the runs of a process that share it.

    `batches`: a folder where batches are kept for other processes that see the same stream.
    """
    stream = _stream(stream_text(experiment))
    # A stream that makes its batches in a way of its own is left alone: pixels are not all there is to it.
    plain = all(getattr(type(stream), name) is getattr(streams.Seekable, name) for name in ("__getitem__", "batches"))
    return stream if batches is None or not plain else streams.CachedStream(stream, batches)


def stream_text(experiment: Experiment) -> str:
    """All that the stream is made from: experiments in which this is equal see the same batches."""
    # A stream may have a seed of its own; then the experiment's is the method's alone.
    asked = {"seed": experiment.seed, "steps": experiment.steps, "batch": experiment.batch}
    return json.dumps({"name": experiment.stream.name, **asked, **experiment.stream.options})


def adapter_of(experiment: Experiment, model: nn.Module, stream: streams.Seekable) -> Adapter:
    """The adapter before the first batch."""
    return Adapter(model, **options_of(experiment, stream))


def method_of(experiment: Experiment) -> methods.Method:
    """The method with its options."""
    return _instance(methods.base.registry, experiment.method)


def policy_of(experiment: Experiment) -> resets.Reset:
    """The reset policy with its options."""
    return _instance(resets.base.registry, experiment.reset)


def options_of(experiment: Experiment, stream: streams.Seekable | None = None) -> dict[str, Any]:
    """What an `Adapter`, or a `Fleet`, takes beside the model; the stream may lend source data."""
    method, policy = method_of(experiment), policy_of(experiment)
    return {
        "method": method,
        "reset": policy,
        "optimizer": _optimizer(experiment.optimizer),
        "source": _source(experiment, stream) if method.needs_source or policy.needs_source else None,
        "seed": experiment.seed,
        "window": experiment.window,
    }


def check(experiment: Experiment) -> None:
    """Raise now what would otherwise be raised when the run starts: unknown names and options."""
    method_of(experiment)
    policy_of(experiment)
    _optimizer(experiment.optimizer)
    if ":" not in experiment.stream.name:
        streams.registry.get(experiment.stream.name)
    if ":" not in experiment.model.name:
        models.registry.get(experiment.model.name)


def _text(part: Specification) -> str:
    return json.dumps({"name": part.name, **part.options})


@functools.lru_cache(_REMEMBERED)
def _model(text: str) -> nn.Module:
    part = Specification.parse(json.loads(text))
    if ":" in part.name:
        network = imported(part.name)(**part.options)
        if not isinstance(network, nn.Module):
            raise TypeError(f"{part.name} must return a torch.nn.Module, got {type(network).__name__}")
        return network
    return models.load(part.name, **part.options)


@functools.lru_cache(_REMEMBERED)
def _stream(text: str) -> streams.Seekable:
    part = Specification.parse(json.loads(text))
    options = _tuples(part.options)
    if "order" in options:
        options["order"] = _order(part.options["order"])
    make = imported(part.name) if ":" in part.name else functools.partial(streams.make, part.name)
    try:
        stream = make(**options)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if not isinstance(stream, streams.Seekable):
        raise TypeError(f"{part.name} must return a tidefast.streams.Seekable, got {type(stream).__name__}")
    return stream


def _order(given: Any) -> streams.Order:
    part = Specification.parse(given)
    if part.name not in _ORDERS:
        raise UnknownNameError(f"unknown order {part.name!r}; known: {', '.join(_ORDERS)}")
    return _called(f"order {part.name!r}", _ORDERS[part.name], part.options)


def _instance(registry: Registry[T], part: Specification) -> T:
    """The registered class with the options as fields; `preset` names one of its ready-made settings."""
    cls, usual = registry.resolve(part.name)
    options = {**usual, **_tuples(part.options)}
    preset = options.pop("preset", None)
    make: Callable[..., T] = cls
    if preset is not None:
        make = getattr(cls, str(preset), None)  # type: ignore[assignment]  # checked on the next line
        if not isinstance(vars(cls).get(str(preset)), classmethod):
            known = ", ".join(name for name, value in vars(cls).items() if isinstance(value, classmethod))
            raise ValueError(f"{registry.kind} {part.name!r} has no preset {preset!r}; it has: {known or 'none'}")
    return _called(f"{registry.kind} {part.name!r}", make, options, cls)


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def _called(what: str, make: Callable[..., T], options: dict[str, Any], cls: type | None = None) -> T:
    known = [field.name for field in dataclasses.fields(cls or make) if field.init]  # type: ignore[arg-type]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise ValueError(
            f"{what} has no option {', '.join(map(repr, unknown))}; its options: {', '.join(known) or 'none'}"
        )
    try:
        return make(**options)
    except TypeError as error:
        raise ValueError(f"{what}: {error}") from error


def _optimizer(part: Specification | None) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None:
    if part is None:
        return None
    if part.name.lower() not in _OPTIMIZERS:
        raise UnknownNameError(f"unknown optimizer {part.name!r}; known: {', '.join(sorted(_OPTIMIZERS))}")
    factory = functools.partial(_OPTIMIZERS[part.name.lower()], **part.options)
    try:
        factory([nn.Parameter(torch.zeros(1))])
    except TypeError as error:
        raise ValueError(f"optimizer {part.name!r}: {error}") from error
    return factory


def _source(experiment: Experiment, stream: streams.Seekable | None) -> str | Preparation | list[Tensor]:
    """A file of `tidefast.prepare`, what was made of another set, or clean images of the stream's own: no labels."""
    source = experiment.source
    if source is None:
        data = getattr(stream, "data", None)
        if data is None:
            raise ValueError(
                f"{experiment.method.name} needs source images, and the stream {experiment.stream.name!r} has no "
                "clean ones: give source= a folder of images or a file of tidefast.prepare"
            )
        return [images for images, _ in _clean(data, experiment.source_images)]
    if Path(source).is_file() and Path(source).suffix == ".safetensors":
        return source
    parts = (experiment.model, experiment.method, experiment.reset)
    return _preparation(*map(_text, parts), source, experiment.source_images)


@functools.lru_cache(_REMEMBERED)
def _preparation(model: str, method: str, reset: str, source: str, images: int) -> Preparation:
    """What a method and a policy take from a data set; one for all the runs of a process that share it."""
    parts = [Specification.parse(json.loads(text)) for text in (method, reset)]
    chosen, policy = _instance(methods.base.registry, parts[0]), _instance(resets.base.registry, parts[1])
    return prepare(_model(model), chosen, _clean(datasets.open(source), images), reset=policy)


def _clean(data: streams.LabelledImages, images: int, batch: int = 64) -> list[tuple[Tensor, Tensor]]:
    """At most so many clean images with their labels, spread evenly over the set; each batch, where it is sorted."""
    images = min(images, len(data))
    places = np.linspace(0, len(data) - 1, images).round().astype(np.int64)
    count = -(-images // batch)
    parts = np.split(places, range(batch, images, batch))
    if count > 1 and bool((np.diff(data.labels[places]) >= 0).all()):
        parts = [places[first::count] for first in range(count)]
    chosen = [data[part] for part in parts]
    return [(streams.as_tensor(one.images), torch.as_tensor(one.labels, dtype=torch.int64)) for one in chosen]
