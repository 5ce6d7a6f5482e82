"""What is run for a table, row by row and column by column."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.core.specification import Specification
from tidefast.errors import how_to_install
from tidefast.paper import published
from tidefast.paper.published import PaperTable
from tidefast.paper.reproduction.claims import CLAIMS, Claim
from tidefast.paper.reproduction.columns import Column, Make, columns
from tidefast.paper.reproduction.quantity import MeasuredValue, Quantity
from tidefast.paper.reproduction.rows import ABLATED, Line, lines
from tidefast.paper.scale import Place, Setting

if TYPE_CHECKING:
    from torch import nn

TRANSFORMER = (3, 27, 35, 36, 37)
TINY = 27
FEW = frozenset({"Source", *(f"{base}{add_on}" for base in ("ETA", "ROID") for add_on in ("", " + RDumb", " + ASR"))})
"""Rows that are run at the small scale where all would take long."""
_TINY = Specification("tidefast.paper.reproduction.plan:vit_tiny", title="ViT-Tiny")


@dataclass(frozen=True)
class Plan:
    """The runs of a table, and what each cell makes of them."""

    table: PaperTable
    base: str
    """What the rows of an ablation table are about."""
    lines: tuple[Line, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, str], Quantity]
    """By the name of a row and the key of a column; what is missing is not run."""
    claims: tuple[Claim, ...]
    notes: tuple[str, ...]

    @property
    def headings(self) -> dict[str, str]:
        """By the keys of the columns."""
        printed = {column.key: column.label for column in self.table.columns}
        return {column.key: column.heading or printed[column.key] for column in self.columns}

    @property
    def experiments(self) -> list[Experiment]:
        """Each once."""
        distinct: dict[str, Experiment] = {}
        for quantity in self.cells.values():
            distinct.update(zip(quantity.keys, quantity.experiments, strict=True))
        return list(distinct.values())

    def values(self, runs: Mapping[str, Run]) -> dict[tuple[str, str], MeasuredValue]:
        """What finished runs say, cell by cell."""
        measured = {place: quantity.value(runs) for place, quantity in self.cells.items()}
        return {place: value for place, value in measured.items() if value is not None}


def plan(number: int, setting: Setting, *, base: str | None = None, all_rows: bool = False) -> Plan:
    """The plan of a table of results, at a scale.

    `base`: the method that ablations are made on; by default the paper's ROID, and at the small scale, where ROID does
    not collapse, ETA. `all_rows`: all contestants also where the small scale runs a few.

    >>> from tidefast.paper.scale import MiniScale
    >>> len(plan(5, MiniScale()).experiments), plan(5, MiniScale()).lines[2].label
    (21, 'ETA + ASR w/o r_t')
    """
    table = published.table(number)
    mini = setting.name == "mini"
    base = (base or ("ETA" if mini else "ROID")) if number in ABLATED else "ROID"
    rows, shown = lines(table, base), columns(table, setting)
    make = _maker(number, setting)
    few = mini and not all_rows
    cells = {}
    for line in rows:
        for column in shown:
            quantity = None if few and column.heavy and line.name not in FEW else column.quantity(line, make)
            if quantity is not None:
                cells[line.name, column.key] = quantity
    there = {column.key for column in shown}
    claims = tuple(claim for claim in CLAIMS.get(number, ()) if claim.column in there)
    notes = _notes(table, setting, base, rows, shown, cells)
    return Plan(table, base, tuple(rows), tuple(shown), cells, claims, notes)


def _maker(number: int, setting: Setting) -> Make:
    def make(place: Place, method: str, reset: str) -> Experiment:
        if number not in TRANSFORMER:
            return setting.experiment(place, method, reset)
        if place.steps is not None:  # a transformer's steps take long: half the stream
            place = dataclasses.replace(place, steps=max(1, place.steps // 2))
        made = setting.experiment(place, method, reset, model="vit")
        return dataclasses.replace(made, model=_TINY) if number == TINY and setting.name != "mini" else made

    return make


def _notes(
    table: PaperTable,
    setting: Setting,
    base: str,
    rows: list[Line],
    shown: list[Column],
    cells: Mapping[tuple[str, str], Quantity],
) -> tuple[str, ...]:
    notes = []
    if setting.name == "mini":
        notes.append(
            "Ours: the bundled benchmark, small streams of small images with a small network; heights are not "
            "comparable with the paper's: look at the order."
        )
    if table.number in ABLATED and base != "ROID":
        notes.append(f"Ours is on {base}, the paper's on ROID.")
    if table.number == TINY and setting.name == "mini":
        notes.append("There is no smaller network than the bundled vision transformer: ours is the same as in table 3.")
    if table.number == 21:
        notes.append(
            "The row printed 1-mu_0 has the numbers of mu_C = 0.995, the constant of table 5: that is what ran."
        )
    if table.number == 10:
        notes.append(
            "Ours counts every number in memory: weights, buffers, gradients, the optimiser's, copies and averages. "
            "Seconds are in units of ETA's; ours are the processor time of a few steps, measured just now."
        )
    differing = [f"{_label(table, column.key)} is {column.ours}" for column in shown if column.ours]
    if differing:
        notes.append(f"In ours, {', '.join(differing)}.")
    dropped = [
        c.label for c in table.columns if c.decimals is not None and c.key not in {column.key for column in shown}
    ]
    if dropped:
        notes.append(f"Columns without a counterpart at this scale: {', '.join(dropped)}.")
    left = [
        line.label for line in rows if any((line.name, column.key) not in cells for column in shown if column.heavy)
    ]
    if left:
        names = [_label(table, column.key) for column in shown if column.heavy]
        where = "" if all(column.heavy for column in shown) else f" in {', '.join(names)}"
        notes.append(f"Left out{where} at this scale, add --all-rows for them: {', '.join(left)}.")
    return (*notes, *_shorter(rows, cells), *(f"On the paper's table: {note}" for note in table.notes))


def _shorter(rows: list[Line], cells: Mapping[tuple[str, str], Quantity]) -> list[str]:
    """Rows that see less of their streams than the others."""
    steps = {
        line.label: max(experiment.steps for experiment in quantity.experiments if experiment.steps)
        for line in rows
        for (name, _), quantity in cells.items()
        if name == line.name and any(experiment.steps for experiment in quantity.experiments)
    }
    most = max(steps.values(), default=0)
    fewer: dict[int, list[str]] = {}
    for label, count in steps.items():
        if count < most:
            fewer.setdefault(count, []).append(label)
    return [f"Only the first {count} of {most} batches: {', '.join(who)}." for count, who in fewer.items()]


def _label(table: PaperTable, key: str) -> str:
    return next(column.label for column in table.columns if column.key == key)


def vit_tiny(pretrained: bool = True) -> nn.Module:
    """timm's ViT-Tiny, which the paper does not name but is the usual one, with its ImageNet weights.

    It takes images in [0, 1] and normalises them itself.
    """
    try:
        import timm
    except ImportError as error:
        raise ImportError(f"ViT-Tiny comes from timm: {how_to_install('vision')}") from error
    from torch.nn import Sequential

    from tidefast.models.pixels import PixelNormalization

    half = (0.5, 0.5, 0.5)
    return Sequential(
        PixelNormalization(half, half), timm.create_model("vit_tiny_patch16_224", pretrained=pretrained)
    ).eval()
