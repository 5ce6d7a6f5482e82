"""A table before it has a format: rows of cells under column headings, with what must be said below."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidefast.bench.metrics import PairedDifference

COLLAPSED = "below the source model on the same stream"
UNDECIDED = "undecided: the interval of 95 % holds 0, or there is none"


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and the value behind it for machines."""

    text: str = "-"
    value: float | str | None = None
    std: float | None = None
    count: int | None = None
    """How many runs the value is the mean of, where it is one."""
    collapsed: bool = False
    best: bool = False
    partial: bool = False
    """Made with runs that have not seen their whole stream."""
    interval: tuple[float, float] | None = None
    """Where a difference may be, at 95 %."""
    undecided: bool = False

    @property
    def marks(self) -> list[str]:
        """What sets the cell apart, in words."""
        return [name for name in ("collapsed", "best", "partial", "undecided") if getattr(self, name)]


@dataclass(frozen=True)
class Row:
    """A label and its cells; rows of one `group` stand together."""

    label: str
    cells: tuple[Cell, ...]
    group: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table. `key` is its short name, `corner` the heading of the row labels."""

    key: str
    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"row {row.label!r} has {len(row.cells)} cells for {len(self.columns)} columns")

    def compact(self) -> Sheet:
        """The table without columns that have no values."""
        kept = [at for at in range(len(self.columns)) if any(row.cells[at].value is not None for row in self.rows)]
        rows = tuple(replace(row, cells=tuple(row.cells[at] for at in kept)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in kept), rows=rows)

    def has(self, mark: str) -> bool:
        """Whether any cell carries a mark."""
        return any(mark in cell.marks for row in self.rows for cell in row.cells)


def number(
    value: float | None,
    decimals: int = 1,
    *,
    std: float | None = None,
    count: int | None = None,
    signed: bool = False,
    collapsed: bool = False,
    best: bool = False,
    partial: bool = False,
) -> Cell:
    """A cell with a number; None and nan show as a dash. The standard deviation has one decimal.

    >>> number(43.24, 2, std=1.0).text, number(-0.5, signed=True).text, number(float("nan")).text
    ('43.24 ± 1.0', '-0.5', '-')
    """
    if value is None or math.isnan(value):
        return Cell(partial=partial)
    text = f"{value:{'+' if signed else ''}.{decimals}f}" + ("" if std is None else f" ± {std:.1f}")
    return Cell(text, value, std, count, collapsed, best, partial)


def difference(paired: PairedDifference, decimals: int = 1) -> Cell:
    """A cell with a paired difference and its interval, marked when that decides nothing."""
    if math.isnan(paired.points):
        return Cell()
    cell = number(paired.points, decimals, count=paired.streams, signed=True)
    undecided = paired.verdict == "undecided"
    if math.isnan(paired.low):
        return replace(cell, undecided=undecided)
    text = f"{cell.text} [{paired.low:+.{decimals}f}, {paired.high:+.{decimals}f}]"
    return replace(cell, text=text, interval=(paired.low, paired.high), undecided=undecided)
