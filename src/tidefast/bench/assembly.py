"""From an experiment to its parts; a process keeps the last few models and streams, for the next run."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tidefast import datasets, methods, models, resets, streams
from tidefast.adapter import Adapter
from tidefast.bench.experiment import Experiment
from tidefast.core import optim
from tidefast.core.specification import Specification
from tidefast.core.validation import require_device
from tidefast.models.images import class_names, images_for, number_of_classes, source_for
from tidefast.preparation import Preparation, prepare
from tidefast.resets.asr import accumulations, expressions, extents, measures, triggers
from tidefast.streams.clean import CleanAccuracy, clean_accuracy, clean_images

_REMEMBERED = 2
_OF_FILES = ("size", "resize", "classes")


def model_of(experiment: Experiment) -> nn.Module:
    """The trained network; one copy for all the runs of a process, which an adapter never changes."""
    return _model_on(_text(experiment.model), experiment.device)


def stream_of(experiment: Experiment, batches: Path | None = None) -> streams.Seekable:
    """The stream, from its beginning; one copy for all the runs of a process that share it.

    `batches`: a folder where batches are kept for other processes that see the same stream.
    """
    stream = _stream(_stream_specification(experiment), _text(experiment.model))
    # A stream that makes its batches in a way of its own is left alone: pixels are not all there is to it.
    plain = all(getattr(type(stream), name) is getattr(streams.Seekable, name) for name in ("__getitem__", "batches"))
    return stream if batches is None or not plain else streams.CachedStream(stream, batches)


def stream_text(experiment: Experiment) -> str:
    """All that the stream is made from: experiments in which this is equal see the same batches."""
    specification = _stream_specification(experiment)
    # The classes of a model decide on the labels of images that come from a path.
    return specification if "data" not in experiment.stream.options else specification + _text(experiment.model)


def clean_accuracy_of(experiment: Experiment) -> CleanAccuracy | None:
    """Of the source model on clean images of the stream's; None where the stream has none.

    Whose labels cannot be those of the model is refused here.
    """
    return _clean_accuracy(_stream_specification(experiment), _text(experiment.model))


def _stream_specification(experiment: Experiment) -> str:
    # A stream may have a seed of its own; then the experiment's is the method's alone.
    asked = {"seed": experiment.seed, "steps": experiment.steps, "batch": experiment.batch}
    return json.dumps({"name": experiment.stream.name, **asked, **experiment.stream.options})


def adapter_of(experiment: Experiment, model: nn.Module, stream: streams.Seekable) -> Adapter:
    """The adapter before the first batch."""
    return Adapter(model, **options_of(experiment, stream))


def method_of(experiment: Experiment) -> methods.Method:
    """The method with its options."""
    return methods.base.registry.make(experiment.method)


def policy_of(experiment: Experiment) -> resets.Reset:
    """The reset policy with its options."""
    return resets.base.registry.make(experiment.reset)


def options_of(experiment: Experiment, stream: streams.Seekable) -> dict[str, Any]:
    """What an `Adapter` takes beside the model; the stream may lend source data."""
    method, policy = method_of(experiment), policy_of(experiment)
    return {
        "method": method,
        "reset": policy,
        "optimizer": experiment.optimizer,
        "source": _source(experiment, stream) if method.takes_source or policy.takes_source else None,
        "seed": experiment.seed,
        "window": experiment.window,
        "gather": experiment.gather,
    }


def check(experiment: Experiment) -> None:
    """Raise now what would otherwise be raised when the run starts: unknown names and options."""
    method_of(experiment)
    policy_of(experiment)
    if experiment.optimizer is not None:
        optim.factory(experiment.optimizer)
    streams.check(json.loads(_stream_specification(experiment)))
    models.registry.bound(experiment.model)


def modules() -> tuple[str, ...]:
    """The modules, not tidefast's own, that registered anything in this process; workers import them too."""
    kinds = (methods.base.registry, resets.base.registry, streams.registry, models.registry, streams.orders)
    parts = (measures.registry, triggers.registry, extents.registry, accumulations.registry)
    registries = (*kinds, *parts, expressions.strengths, expressions.momenta)
    return tuple(sorted(set().union(*(registry.modules() for registry in registries)) - {"__main__"}))


def _text(part: Specification) -> str:
    return json.dumps({"name": part.name, **part.options})


@functools.lru_cache(_REMEMBERED)
def _model(text: str) -> nn.Module:
    return models.load(json.loads(text))


@functools.lru_cache(_REMEMBERED)
def _model_on(text: str, device: str) -> nn.Module:
    model = _model(text)
    return model if device == "cpu" else copy.deepcopy(model).to(require_device(device))


@functools.lru_cache(_REMEMBERED)
def _stream(text: str, model: str) -> streams.Seekable:
    asked = json.loads(text)
    if isinstance(asked.get("data"), str) and not Specification.parse({"name": asked["name"]}).is_address:
        of_files = {key: asked.pop(key, None) for key in _OF_FILES}
        asked["data"] = images_for(_model(model), asked["data"], **of_files)
    return streams.make(asked)


@functools.lru_cache(_REMEMBERED)
def _clean_accuracy(stream: str, model: str) -> CleanAccuracy | None:
    seen, network = _stream(stream, model), _model(model)
    images = clean_images(seen)
    if images is not None:
        return clean_accuracy(network, images)
    datasets.require_match(seen.classes, number_of_classes(network, seen[0].images[:1]), class_names(network))
    return None


def _source(experiment: Experiment, stream: streams.Seekable) -> str | Preparation | list[Tensor]:
    """A file of `tidefast.prepare`, what was made of another set, or clean images of the stream's own: no labels."""
    source = experiment.source
    if source is None:
        data = getattr(stream, "data", None)
        if data is None:
            raise ValueError(
                f"{experiment.method.name} needs source images, and the stream {experiment.stream.name!r} has no "
                "clean ones: give --source (source=) a folder of images or a file of tidefast.prepare"
            )
        return [images for images, _ in datasets.source_batches(data, experiment.source_images)]
    parts = (experiment.model, experiment.method, experiment.reset)
    return _prepared(*map(_text, parts), source, experiment.source_images)


@functools.lru_cache(_REMEMBERED)
def _prepared(model: str, method: str, reset: str, source: str, images: int) -> str | Preparation:
    """What a method and a policy take from a data set; one for all the runs of a process that share it."""
    network = _model(model)
    given = source_for(network, source, images)
    return given if isinstance(given, str) else prepare(network, json.loads(method), given, reset=json.loads(reset))
