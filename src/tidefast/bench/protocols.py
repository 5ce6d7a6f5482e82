"""What is customary for each benchmark: which accuracy counts, and what is averaged over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidefast import streams
from tidefast.bench import metrics
from tidefast.bench.experiment import Experiment
from tidefast.core.specification import Specification
from tidefast.errors import UnknownNameError

MINI = "-mini"


@dataclass(frozen=True)
class Protocol:
    """One benchmark."""

    accuracy: str = "images"
    """By "images", "domains" or "visits"."""
    pooled: tuple[str, ...] = ()
    """Options that are averaged over, as seeds are."""


PROTOCOLS = {
    "ccc": Protocol("images", ("speed",)),
    "ccc-shards": Protocol("images", ("speed",)),
    "cin-c": Protocol("domains", ("order_number",)),
    "cin-c-noniid": Protocol("domains", ("order_number",)),
    "in-c-recurring": Protocol("visits"),
    "in-d109-recurring": Protocol("visits"),
    "cdc": Protocol("visits"),
    "petta-recurring": Protocol("visits"),
    "cifar10-c": Protocol("visits"),
    "cifar100-c": Protocol("visits"),
    "recurring": Protocol("visits"),
}
"""By the name of a stream. A stream that is not here counts images; a `-mini` one does as its big brother."""


def protocol(stream: Specification) -> Protocol:
    """What is customary for a stream; small versions pool only seeds.

    >>> protocol(Specification("ccc-mini")).accuracy, protocol(Specification("recurring")).accuracy
    ('images', 'visits')
    """
    known = PROTOCOLS.get(stream.name.removesuffix(MINI), Protocol())
    pooled = () if stream.name.endswith(MINI) else known.pooled
    return dataclasses.replace(known, pooled=("seed", *pooled))


def accuracy(experiment: Experiment, summary: Mapping[str, Any], kind: str = "auto") -> float:
    """The accuracy of a run in percent, from its summary: by images, domains or visits; `auto`: as is customary."""
    over = protocol(experiment.stream).accuracy if kind == "auto" else kind
    return 100.0 * metrics.accuracy_over(over, summary)


def usual_batch(experiment: Experiment) -> bool:
    """Whether a run had the batch size of its protocol.

    >>> usual_batch(Experiment("ccc", "eta")), usual_batch(Experiment("ccc", "eta", batch=32))
    (True, False)
    """
    recipe = recipe_of(experiment.stream)
    return experiment.batch is None or (recipe is not None and experiment.batch == recipe.default_batch)


def recipe_of(stream: Specification) -> type[streams.Recipe] | None:
    """The kind of a stream; None when it is a plug-in's that is not installed here."""
    try:
        return streams.registry.get(stream.name)
    except UnknownNameError:
        return None
