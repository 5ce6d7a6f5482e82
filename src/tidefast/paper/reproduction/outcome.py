"""What came out: ours beside theirs, the paper's claims with how they fare, and the summary of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidefast.bench.metrics import PairedDifference, collapsed
from tidefast.paper import published
from tidefast.paper.reproduction.claims import Agreement, ClaimVerdict, agreement
from tidefast.paper.reproduction.columns import Column
from tidefast.paper.reproduction.plan import Plan
from tidefast.paper.reproduction.quantity import MeasuredValue
from tidefast.paper.reproduction.rows import Line
from tidefast.report.sheet import Cell, Row, Sheet, difference, number

NARROW = 4
"""Up to so many columns, ours and theirs stand side by side; with more, one above the other."""
CellValues = Mapping[tuple[str, str], MeasuredValue]


@dataclass(frozen=True)
class TargetOutcome:
    """What came out for one table or figure."""

    label: str
    title: str
    sheets: tuple[Sheet, ...]
    finished: int = 0
    wanted: int = 0
    """Runs."""
    verdicts: tuple[ClaimVerdict, ...] = ()
    order: Agreement = field(default_factory=Agreement)
    files: tuple[Path, ...] = ()
    remark: str = ""
    """In the summary, where claims and order say nothing."""


def summary(outcomes: Sequence[TargetOutcome]) -> Sheet:
    """One row for each: how many runs, which claims hold, how far the order is the paper's."""
    columns = ("runs", "claims that hold", "undecided", "that do not", "order as in the paper", "what")
    rows = tuple(_row(outcome) for outcome in outcomes)
    notes = (
        "A claim is a comparison of rows that the paper's text makes; it is undecided when the interval of a paired "
        "difference holds 0, or when there is none. Order: of the pairs of rows that are decided here, those alike.",
    )
    return Sheet("reproduction", "The paper's tables and figures, reproduced", "", columns, rows, notes)


def _row(outcome: TargetOutcome) -> Row:
    counts = Counter(verdict.in_words for verdict in outcome.verdicts)
    sentence = [number(counts[name], 0) for name in ("holds", "undecided", "does not hold")]
    share = outcome.order.share
    order = Cell() if share is None else Cell(f"{share:.0%} of {outcome.order.pairs}", share)
    runs = f"{outcome.finished} of {outcome.wanted}" if outcome.wanted else "none needed"
    what = outcome.title if not outcome.remark else f"{outcome.title} ({outcome.remark})"
    empty = not any(counts[name] for name in ("holds", "undecided", "does not hold"))
    return Row(outcome.label, (Cell(runs, runs), *([Cell()] * 3 if empty else sentence), order, Cell(what, what)))


def sheet(plan: Plan, values: CellValues) -> Sheet:
    """The table, ours and theirs."""
    names = list(plan.headings.values())
    beside = len(plan.columns) <= NARROW
    columns = [f"{name}: {whose}" for name in names for whose in ("ours", "paper")] if beside else names
    rows = []
    for line in plan.lines:
        pairs = [(_ours(plan, line, column, values), theirs(line, column)) for column in plan.columns]
        if beside:
            rows.append(Row(line.label, tuple(cell for pair in pairs for cell in pair), line.group))
        else:
            run = any((line.name, column.key) in plan.cells for column in plan.columns)
            for whose, cells in zip(("ours", "paper"), zip(*pairs, strict=True), strict=True):
                if whose == "paper" or run:
                    rows.append(Row(f"{line.label}: {whose}", tuple(cells), line.name))
    table = plan.table
    about = f", ours on {plan.base}" if plan.base != "ROID" else ""
    title = f"Table {table.number} ({table.id}){about}. {table.title}"
    corner = table.label if not plan.base or plan.base == "ROID" else f"{table.label} (paper: ROID)"
    notes = (*_order(plan, values), *plan.notes)
    return Sheet(f"reproduced-{table.number}", title, corner, tuple(columns), tuple(rows), notes)


def claims(plan: Plan, ours: list[ClaimVerdict], theirs_: list[ClaimVerdict]) -> Sheet:
    """The claims of a table, by how much each holds here and there."""
    headings = plan.headings
    labels = {line.name: line.label for line in plan.lines}
    rows = []
    for here, there in zip(ours, theirs_, strict=True):
        claim = here.claim
        others = ", ".join(labels[name] for name in claim.below) if claim.below else "all others"
        measured = f" ({here.measured} of {here.asked} measured)" if 0 < here.measured < here.asked else ""
        sentence = f"{labels[claim.above]} above {others} in {headings[claim.column]}{measured}"
        margin = Cell() if here.nearest is None else difference(here.nearest, 2)
        streams = number(None if here.nearest is None else here.nearest.streams, 0)
        rows.append(
            Row(sentence, (margin, streams, number(there.margin, 2, signed=True), Cell(here.in_words, here.in_words)))
        )
    notes = (
        "Margin to the best of the others, with its bootstrap interval of 95 % over streams and over blocks of batches "
        "within each. A claim holds when the interval to each of the others is above 0; of a single stream it says "
        "nothing about other streams. Where batches cannot be paired there is no interval, and nothing is decided.",
    )
    title = f"Table {plan.table.number}: the paper's claims"
    columns = ("ours", "streams", "paper", "here")
    return Sheet(f"claims-{plan.table.number}", title, "claim", columns, tuple(rows), notes)


def agreements(plan: Plan, values: CellValues) -> dict[str, Agreement]:
    """How far the order of the rows is the paper's, by column."""
    by_column = {}
    for column in plan.columns:
        if not column.ordered:
            continue
        ours = {line.name: values[place] for line in plan.lines if (place := (line.name, column.key)) in values}
        published = {line.name: published_value(line, column) for line in plan.lines}
        known = {name: value for name, value in published.items() if value is not None}

        def compare(row: str, other: str, ours: dict[str, MeasuredValue] = ours) -> PairedDifference:
            return ours[row].over(ours[other])

        by_column[column.key] = agreement([*ours], known, compare)
    return by_column


def published_value(line: Line, column: Column) -> float | None:
    """The paper's number for a cell, if it is one."""
    value = theirs(line, column).value
    return float(value) if isinstance(value, (int, float)) else None


def theirs(line: Line, column: Column) -> Cell:
    """The paper's cell, in the units of ours."""
    cell = line.published.get(column.key, Cell())
    if column.key == "seconds_per_batch" and isinstance(cell.value, (int, float)):
        return number(cell.value / _eta_seconds(), 2)
    return cell


def _ours(plan: Plan, line: Line, column: Column, values: CellValues) -> Cell:
    value = values.get((line.name, column.key))
    if value is None:
        return Cell()
    if not column.ordered:
        return Cell(_short(value.number), value.number)
    source = values.get(("Source", column.key))
    return number(
        value.number,
        column.decimals,
        std=value.std,
        count=value.count if value.std is not None else None,
        collapsed=source is not None and collapsed(value.number, source.number),
    )


def _order(plan: Plan, values: CellValues) -> list[str]:
    compared = {key: agreement for key, agreement in agreements(plan, values).items() if agreement.pairs}
    if not compared:
        return []
    headings = plan.headings
    whole = sum(compared.values(), Agreement())
    parts = ", ".join(f"{headings[key]} {agreement.same} of {agreement.pairs}" for key, agreement in compared.items())
    return [
        f"Order: {whole.same} of {whole.pairs} pairs of rows ({whole.same / whole.pairs:.0%}) stand as in the paper, "
        f"pairs that are undecided here not counted ({parts})."
    ]


def _eta_seconds() -> float:
    """A batch of ETA in the paper's table on cost."""
    row = published.table(10).row("ETA")
    assert row is not None
    return float(row.cells["seconds_per_batch"].value or 1.0)


def _short(count: float) -> str:
    """A count as the paper prints it.

    >>> _short(53120), _short(25_557_032)
    ('53.1K', '25.6M')
    """
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.1f}K"
