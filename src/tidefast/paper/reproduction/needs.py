"""Which files an experiment needs, by the options of the command that name them."""

from __future__ import annotations

from collections.abc import Iterable

from tidefast.bench import assembly
from tidefast.bench.experiment import Experiment

_OPTIONS = {
    "ccc": "--imagenet with --matrix, or --ccc-shards",
    "ccc-shards": "--ccc-shards",
    "cin-c": "--imagenet-c",
    "cin-c-noniid": "--imagenet-c",
    "in-c-recurring": "--imagenet-c",
    "cdc": "--imagenet-c",
    "in-d109-recurring": "--d109",
    "cifar10-c": "--cifar10-c",
    "cifar100-c": "--cifar100-c",
}
_GIVEN = ("data", "path", "root")
_SOURCE = "--source"


def needed(experiments: Iterable[Experiment]) -> list[str]:
    """What must be given for some experiments; nothing for those on bundled images."""
    found: dict[str, None] = {}
    for one in experiments:
        if one.stream.name in _OPTIONS:
            found[_OPTIONS[one.stream.name]] = None
            if _wants_source(one):
                found[_SOURCE] = None
    return list(found)


def absent(experiments: Iterable[Experiment]) -> list[str]:
    """What must be given, and is not."""
    wanted = [one for one in experiments if one.stream.name in _OPTIONS]
    lacking = {
        _OPTIONS[one.stream.name]: None for one in wanted if not any(name in one.stream.options for name in _GIVEN)
    }
    if any(one.source is None and _wants_source(one) for one in wanted):
        lacking[_SOURCE] = None
    return list(lacking)


def _wants_source(experiment: Experiment) -> bool:
    """Whether the stream's own clean images, which come without labels, are not there or not enough."""
    parts = assembly.method_of(experiment), assembly.policy_of(experiment)
    said = [part.needs_source for part in parts if part.needs_source]
    return any(text.startswith("labelled") for text in said) or (bool(said) and experiment.stream.name != "ccc")
