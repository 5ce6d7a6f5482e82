"""The published results: the 37 tables of the paper that introduced ASR, as printed."""

from __future__ import annotations

import difflib
import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tidefast.errors import UnknownNameError
from tidefast.report.sheet import Cell, Row, Sheet, number

_YES = {True: "yes", False: "no"}


@dataclass(frozen=True)
class PublishedColumn:
    """A column of a published table; `decimals` is None where values are shown as they are."""

    key: str
    label: str
    decimals: int | None


@dataclass(frozen=True)
class Published:
    """One row of a published table: the method, the base that it adds to (empty when none), its cells by column."""

    method: str
    base: str
    cells: dict[str, Cell]


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper."""

    number: int
    id: str
    title: str
    columns: tuple[PublishedColumn, ...]
    rows: tuple[Published, ...]
    benchmark: str = ""
    backbone: str = ""
    metric: str = ""
    std: str = ""
    """What a standard deviation is taken over."""
    label: str = "method"
    """What the rows are."""
    notes: tuple[str, ...] = ()

    def row(self, method: str) -> Published | None:
        """The row of a method, whatever the case and blanks.

        >>> table("main").row("roid+asr").cells["ccc_hard"].text
        '22.21 ± 1.2'
        """
        return next((row for row in self.rows if plain(row.method) == plain(method)), None)

    def sheet(self) -> Sheet:
        """The table, to be shown."""
        facts = [part for part in (self.metric, f"± {self.std}" if self.std else "") if part]
        return Sheet(
            key=f"paper-{self.number}",
            title=f"Table {self.number} ({self.id}). {self.title}",
            corner=self.label,
            columns=tuple(column.label for column in self.columns),
            rows=tuple(
                Row(row.method, tuple(row.cells[column.key] for column in self.columns), row.base or row.method)
                for row in self.rows
            ),
            notes=(*(["; ".join(facts)] if facts else []), *self.notes),
        )


def tables() -> tuple[PaperTable, ...]:
    """All of them, in order.

    >>> len(tables()), tables()[3].id
    (37, 'main')
    """
    return tuple(_tables().values())


def table(which: int | str) -> PaperTable:
    """One table by its number or its id.

    >>> table(4) is table("4") is table("main")
    True
    """
    known = _tables()
    wanted = str(which).strip().lower().replace("_", "-").removeprefix("tab:")
    for paper_table in known.values():
        if wanted in (str(paper_table.number), paper_table.id.lower()):
            return paper_table
    near = difflib.get_close_matches(wanted, [paper_table.id for paper_table in known.values()], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UnknownNameError(
        f"the paper has no table {which!r}; {hint}there are 1 to {len(known)}; `tidefast paper` lists them"
    )


def index() -> Sheet:
    """The list of the tables."""
    rows = tuple(
        Row(
            str(paper_table.number),
            tuple(Cell(text, text) for text in (paper_table.id, paper_table.benchmark or "-", paper_table.title)),
        )
        for paper_table in tables()
    )
    remarks = tuple(f"{subject}: {remark}." for subject, remark in _content()["remarks"])
    return Sheet(
        "paper",
        f"{_content()['title']} ({_content()['venue']})",
        "table",
        ("id", "benchmark", "title"),
        rows,
        ("In the text:", *remarks),
    )


def find(text: str) -> Sheet:
    """Where rows that contain `text` stand, and what they say; `eta+asr` finds `ETA + ASR`.

    >>> find("roid+asr").rows[0].label
    '1 add-on'
    """
    wanted = plain(text)
    rows = []
    for paper_table in tables():
        for row in paper_table.rows:
            if wanted in plain(row.method):
                cells = (Cell(row.method, row.method), Cell(headline := _headline(paper_table, row), headline))
                rows.append(Row(f"{paper_table.number} {paper_table.id}", cells, str(paper_table.number)))
    if not rows:
        names = sorted({row.method for paper_table in tables() for row in paper_table.rows}, key=str.lower)
        near = difflib.get_close_matches(wanted, [plain(name) for name in names], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(f"no row of the paper's tables contains {text!r}{hint}")
    return Sheet("found", f"Rows of the paper with {text!r}", "table", ("row", "values"), tuple(rows))


def plain(name: str) -> str:
    """A method's name as it is compared: small letters, no blanks, no hyphens.

    >>> plain("ETA + ASR"), plain("C-MAE")
    ('eta+asr', 'cmae')
    """
    return "".join(name.lower().replace("-", "").split())


def _headline(paper_table: PaperTable, row: Published) -> str:
    """The values of a row in a line: all of a few, the last of many."""
    columns = paper_table.columns if len(paper_table.columns) <= 5 else paper_table.columns[-1:]
    if paper_table.number == 4:
        columns = paper_table.columns
    return ", ".join(
        f"{column.label} {row.cells[column.key].text}" for column in columns if row.cells[column.key].value is not None
    )


@functools.cache
def _content() -> dict[str, Any]:
    text = resources.files("tidefast.paper").joinpath("published.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


@functools.cache
def _tables() -> dict[int, PaperTable]:
    return {fields["number"]: _table(fields) for fields in _content()["tables"]}


def _table(fields: dict[str, Any]) -> PaperTable:
    columns = tuple(PublishedColumn(*column) for column in fields["columns"])
    rows = tuple(
        Published(method, base, {c.key: _cell(given, c) for c, given in zip(columns, cells, strict=True)})
        for method, base, cells in fields["rows"]
    )
    rest = {name: value for name, value in fields.items() if name not in ("columns", "rows", "notes")}
    return PaperTable(columns=columns, rows=rows, notes=tuple(fields.get("notes", ())), **rest)


def _cell(given: Any, column: PublishedColumn) -> Cell:
    """A cell of the file: a plain value, or [value, standard deviation, marks]."""
    value, std, marks = (*given, None, None)[:3] if isinstance(given, list) else (given, None, None)
    if value is None:
        return Cell()
    if isinstance(value, bool):
        return Cell(_YES[value], _YES[value])
    if isinstance(value, str):
        return Cell(value, value)
    if column.decimals is None:
        return Cell(f"{value:g}", value)
    marks = marks or ""
    return number(value, column.decimals, std=std, collapsed="c" in marks, best="b" in marks)
