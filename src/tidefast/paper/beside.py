"""Measured beside published: which published number a run corresponds to, and tables of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidefast.bench import Experiment
from tidefast.bench.protocols import MINI, recipe_of, usual_batch
from tidefast.core.specification import Specification
from tidefast.paper import published
from tidefast.report.arrangement import ColumnKey, ContestantKey, Entry
from tidefast.report.comparison import Comparison, mean
from tidefast.report.sheet import Cell, Row, Sheet, number

LEVELS = ("easy", "medium", "hard")
BACKBONES = {
    "resnet50": "resnet50",
    "vit_b_16": "vit_b_16",
    "vit_tiny_patch16_224": "vit_tiny",
    "vit_tiny": "vit_tiny",
}
"""By the name of a network, the paper's name for it."""
RESETS = {"never": "", "periodic": "+rdumb", "asr": "+asr"}

PublishedPlace = tuple[int, str]
"""The number of a published table, and the key of a column."""


@dataclass(frozen=True)
class PublishedStream:
    """A stream of the paper."""

    batches: int
    faithful: tuple[str, ...]
    """Options that do not make it another benchmark."""
    place: Callable[[dict[str, Any], int | None, str], PublishedPlace | None]
    """The published place of a stream with these options and this seed (None: of their mean), and a backbone."""
    alike: bool = True
    """Whether the small version has the same kind of difficulty."""


def _ccc(options: dict[str, Any], seed: int | None, backbone: str) -> PublishedPlace | None:
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


def _orders(number: int) -> Callable[[dict[str, Any], int | None, str], PublishedPlace | None]:
    def place(options: dict[str, Any], seed: int | None, backbone: str) -> PublishedPlace | None:
        order = options.get("order_number")
        if backbone != "resnet50":
            return None
        return number, "mean" if seed is None or not isinstance(order, int) else f"order{order + 1}"

    return place


def _visits(number: int) -> Callable[[dict[str, Any], int | None, str], PublishedPlace | None]:
    return lambda options, seed, backbone: (number, "mean") if backbone == "resnet50" else None


def _cdc(options: dict[str, Any], seed: int | None, backbone: str) -> PublishedPlace | None:
    table = {1.0: 22, 10.0: 23}.get(options.get("delta", 0))
    return (table, "mean") if table and backbone == "resnet50" else None


STREAMS = {
    "ccc": PublishedStream(117_188, ("level", "speed", "matrix"), _ccc),
    "ccc-shards": PublishedStream(117_188, ("level", "speed", "path", "interleave"), _ccc),
    "cin-c": PublishedStream(11_730, ("order_number", "root"), _orders(31)),
    "cin-c-noniid": PublishedStream(11_730, ("order_number", "root"), _orders(32), alike=False),
    "in-c-recurring": PublishedStream(6_320, ("root", "ids"), _visits(33)),
    "in-d109-recurring": PublishedStream(24_400, ("root", "lists"), _visits(34), alike=False),
    "cdc": PublishedStream(6_320, ("root", "ids", "delta"), _cdc),
}
"""By name."""


def reproduced(comparison: Comparison) -> Sheet:
    """Runs that correspond to published ones: measured, published, difference. No rows when there are none."""
    rows = _rows(comparison, lambda entry: counterpart(entry.experiment, entry.batches), _with_difference)
    columns = tuple(
        f"{comparison.arrangement.heading(column)}, {name}"
        for column in comparison.arrangement.columns
        for name in ("measured", "published", "difference")
    )
    notes = (
        "Accuracy in percent; published numbers are the means of the same streams and seeds. Options in brackets may "
        "differ from the published settings. Differences of a few tenths also come from images that are the same in "
        "distribution only, and from the order in which the published runs read their shards.",
    )
    return Sheet("published", "Measured beside published", "contestant", columns, rows, notes).compact()


def for_orientation(comparison: Comparison) -> Sheet:
    """Small benchmarks beside the paper's big ones, without differences: they are not comparable."""
    rows = _rows(
        comparison,
        lambda entry: orientation(entry.experiment),
        lambda measured, published: [measured, published],
    )
    columns = tuple(
        f"{name}{comparison.arrangement.heading(column)}{rest}"
        for column in comparison.arrangement.columns
        for name, rest in (("ours: ", ""), ("paper, for ", " (ImageNet, ResNet-50)"))
    )
    notes = (
        "This is no reproduction. Ours are small streams of small images with a small network; the paper's numbers are "
        "for ImageNet with a ResNet-50. Look at the order of contestants, not at the numbers.",
    )
    title = "For orientation: ours (mini) | paper (ImageNet, ResNet-50)"
    return Sheet("beside", title, "contestant", columns, rows, notes).compact()


def counterpart(experiment: Experiment, batches: int) -> Cell | None:
    """The published number that a run over so many batches corresponds to; None when there is none.

    The stream must be a published one, whole (give or take a hundredth), with the published batch size and network.
    Options of the method and of the reset policy are not compared.
    """
    stream = experiment.stream
    known = STREAMS.get(stream.name)
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
    known = STREAMS.get(stream.name.removesuffix(MINI))
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


def _rows(
    comparison: Comparison,
    counterpart: Callable[[Entry], Cell | None],
    cells: Callable[[Cell, Cell], list[Cell]],
) -> tuple[Row, ...]:
    arrangement = comparison.arrangement
    empty = len(cells(Cell(), Cell()))
    rows = []
    for row in arrangement.rows:
        pairs = [_pair(comparison, row, column, counterpart) for column in arrangement.columns]
        if any(pairs):
            flat = [cell for pair in pairs for cell in (cells(*pair) if pair else [Cell()] * empty)]
            rows.append(Row(arrangement.label(row), tuple(flat), arrangement.group(row)))
    return tuple(rows)


def _pair(
    comparison: Comparison, row: ContestantKey, column: ColumnKey, counterpart: Callable[[Entry], Cell | None]
) -> tuple[Cell, Cell] | None:
    """Means of what was measured and of what was published, over the runs that have both."""
    entries = comparison.arrangement.at(row, column)
    measured, published, collapsed = [], [], []
    for key, value in comparison.values(row, column).items():
        cell = counterpart(entries[key])
        if cell is not None and isinstance(cell.value, (int, float)):
            measured.append(value)
            published.append(float(cell.value))
            collapsed.append(cell.collapsed)
    if not measured:
        return None
    return number(mean(measured), 2, count=len(measured)), number(mean(published), 2, collapsed=all(collapsed))


def _with_difference(measured: Cell, published: Cell) -> list[Cell]:
    if not isinstance(measured.value, float) or not isinstance(published.value, float):
        return [measured, published, Cell()]
    return [measured, published, number(measured.value - published.value, 2, signed=True)]


def _at(place: PublishedPlace | None, experiment: Experiment) -> Cell | None:
    name = contestant(experiment)
    if place is None or name is None:
        return None
    table = published.table(place[0])
    row = table.row(name)
    cell = None if row is None else row.cells.get(place[1])
    return None if cell is None or cell.value is None else cell


def _options(stream: Specification) -> dict[str, Any]:
    """The options of a stream, those that were left out included."""
    recipe = recipe_of(stream)
    fields = () if recipe is None else dataclasses.fields(recipe)
    usual = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    return usual | stream.options
