"""What is customary for each benchmark: which accuracy counts, what is averaged over, where it was published."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidefast import streams
from tidefast.bench import Experiment
from tidefast.core.specification import Specification
from tidefast.errors import UnknownNameError
from tidefast.report import paper
from tidefast.report.sheet import Cell

MINI = "-mini"
LEVELS = ("easy", "medium", "hard")
BACKBONES = {
    "resnet50": "resnet50",
    "vit_b_16": "vit_b_16",
    "vit_tiny_patch16_224": "vit_tiny",
    "vit_tiny": "vit_tiny",
}
"""By the name of a network, the paper's name for it."""
RESETS = {"never": "", "periodic": "+rdumb", "asr": "+asr"}

Place = tuple[int, str]
"""The number of a published table, and the key of a column."""


@dataclass(frozen=True)
class Protocol:
    """One benchmark."""

    accuracy: str = "images"
    """By "images", "domains" or "visits"."""
    pooled: tuple[str, ...] = ()
    """Options that are averaged over, as seeds are."""
    batches: int = 0
    """How many the published stream has."""
    faithful: tuple[str, ...] = ()
    """Options that do not make it another benchmark."""
    place: Callable[[dict[str, Any], int | None, str], Place | None] = lambda options, seed, backbone: None
    """The published place of a stream with these options and this seed (None: of their mean), and a backbone."""
    alike: bool = True
    """Whether the small version has the same kind of difficulty."""


def _ccc(options: dict[str, Any], seed: int | None, backbone: str) -> Place | None:
    level, speed = options.get("level"), options.get("speed")
    if level not in LEVELS:
        return None
    if speed == "random":
        dynamic = {("easy", 43): 6, ("hard", 43): 7}.get((level, seed or 43))
        return (dynamic, "modified") if dynamic and backbone == "resnet50" else None
    if backbone == "vit_tiny":
        return 27, level
    first = {"resnet50": 28, "vit_b_16": 35}[backbone]
    return first + LEVELS.index(level), "mean" if seed is None else f"speed{speed}_seed{seed}"


def _orders(number: int) -> Callable[[dict[str, Any], int | None, str], Place | None]:
    def place(options: dict[str, Any], seed: int | None, backbone: str) -> Place | None:
        order = options.get("order_number")
        if backbone != "resnet50":
            return None
        return number, "mean" if seed is None or not isinstance(order, int) else f"order{order + 1}"

    return place


def _visits(number: int) -> Callable[[dict[str, Any], int | None, str], Place | None]:
    return lambda options, seed, backbone: (number, "mean") if backbone == "resnet50" else None


def _cdc(options: dict[str, Any], seed: int | None, backbone: str) -> Place | None:
    table = {1.0: 22, 10.0: 23}.get(options.get("delta", 0))
    return (table, "mean") if table and backbone == "resnet50" else None


PROTOCOLS = {
    "ccc": Protocol("images", ("speed",), 117_188, ("level", "speed", "matrix"), _ccc),
    "ccc-shards": Protocol("images", ("speed",), 117_188, ("level", "speed", "path", "interleave"), _ccc),
    "cin-c": Protocol("domains", ("order_number",), 11_730, ("order_number", "root"), _orders(31)),
    "cin-c-noniid": Protocol("domains", ("order_number",), 11_730, ("order_number", "root"), _orders(32), alike=False),
    "in-c-recurring": Protocol("visits", (), 6_320, ("root", "ids"), _visits(33)),
    "in-d109-recurring": Protocol("visits", (), 24_400, ("root", "lists"), _visits(34), alike=False),
    "cdc": Protocol("visits", (), 6_320, ("root", "ids", "delta"), _cdc),
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


def usual_batch(experiment: Experiment) -> bool:
    """Whether a run had the batch size of its protocol.

    >>> usual_batch(Experiment("ccc", "eta")), usual_batch(Experiment("ccc", "eta", batch=32))
    (True, False)
    """
    recipe = _recipe(experiment.stream)
    return experiment.batch is None or (recipe is not None and experiment.batch == recipe.default_batch)


def published(experiment: Experiment, batches: int) -> Cell | None:
    """The published number that a run over so many batches corresponds to; None when there is none.

    The stream must be a published one, whole (give or take a hundredth), with the published batch size and network.
    Options of the method and of the reset policy are not compared.
    """
    stream = experiment.stream
    known = PROTOCOLS.get(stream.name)
    backbone = BACKBONES.get(experiment.model.name.rpartition(":")[2].rpartition("/")[2])
    if known is None or backbone is None or experiment.steps is not None or not usual_batch(experiment):
        return None
    if abs(batches - known.batches) > known.batches / 100:
        return None
    if not stream.options.keys() <= {"data", "seed", *known.faithful}:
        return None
    options = _options(stream)
    return _at(known.place(options, options.get("seed", experiment.seed), backbone), experiment)


def orientation(experiment: Experiment) -> Cell | None:
    """For a run on a small version of a benchmark, the published mean of the same contestant on the big one."""
    stream = experiment.stream
    known = PROTOCOLS.get(stream.name.removesuffix(MINI))
    if known is None or not known.alike or not stream.name.endswith(MINI):
        return None
    place = known.place(_options(stream) | {"speed": None}, None, "resnet50")
    return _at(place, experiment)


def contestant(experiment: Experiment) -> str | None:
    """The paper's name for a method with its reset policy, in small letters without blanks; None when it has none.

    >>> contestant(Experiment("drift", "eta", reset="periodic:every=500"))
    'eta+rdumb'
    >>> contestant(Experiment("drift", {"name": "reservoir", "base": "roid"}))
    'roid+reservoirtta'
    """
    reset, options = RESETS.get(experiment.reset.name), experiment.method.options
    if reset is None:
        return None
    name = experiment.method.name
    if name == "reservoir":
        name = f"{Specification.parse(options.get('base', 'eta')).name}+reservoirtta"
    elif options.get("preset") == "source_free" or options.get("source_weight") == 0:
        name += "+sourcefree"
    return name + ("+come" if options.get("objective") == "come" else "") + reset


def _at(place: Place | None, experiment: Experiment) -> Cell | None:
    name = contestant(experiment)
    if place is None or name is None:
        return None
    table = paper.table(place[0])
    row = table.row(name)
    cell = None if row is None else row.cells.get(place[1])
    return None if cell is None or cell.value is None else cell


def _options(stream: Specification) -> dict[str, Any]:
    """The options of a stream, those that were left out included."""
    recipe = _recipe(stream)
    fields = () if recipe is None else dataclasses.fields(recipe)
    usual = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    return usual | stream.options


def _recipe(stream: Specification) -> type[streams.Recipe] | None:
    """The kind of a stream; None when it is a plug-in's that is not installed here."""
    try:
        return streams.registry.get(stream.name)
    except UnknownNameError:
        return None
