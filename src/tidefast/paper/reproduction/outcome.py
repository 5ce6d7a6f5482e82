"""What came out for tables and figures, and the summary of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidefast.paper.reproduction.claims import Agreement, Verdict
from tidefast.report.sheet import Cell, Row, Sheet, number


@dataclass(frozen=True)
class Outcome:
    """What came out for one table or figure."""

    label: str
    title: str
    sheets: tuple[Sheet, ...]
    finished: int = 0
    wanted: int = 0
    """Runs."""
    verdicts: tuple[Verdict, ...] = ()
    order: Agreement = field(default_factory=Agreement)
    files: tuple[Path, ...] = ()
    remark: str = ""
    """In the summary, where claims and order say nothing."""


def summary(outcomes: Sequence[Outcome]) -> Sheet:
    """One row for each: how many runs, which claims hold, how far the order is the paper's."""
    columns = ("runs", "claims that hold", "undecided", "that do not", "order as in the paper", "what")
    rows = tuple(_row(outcome) for outcome in outcomes)
    notes = (
        "A claim is a comparison of rows that the paper's text makes; it is undecided when the margin is below "
        "the noise, half a point of accuracy. Order: of the pairs of rows that differ by more than noise here and "
        "there, those alike.",
    )
    return Sheet("reproduction", "The paper's tables and figures, reproduced", "", columns, rows, notes)


def _row(outcome: Outcome) -> Row:
    counts = Counter(verdict.said.partition(" (")[0] for verdict in outcome.verdicts)
    said = [number(counts[name], 0) for name in ("holds", "undecided", "does not hold")]
    share = outcome.order.share
    order = Cell() if share is None else Cell(f"{share:.0%} of {outcome.order.pairs}", share)
    runs = f"{outcome.finished} of {outcome.wanted}" if outcome.wanted else "none needed"
    what = outcome.title if not outcome.remark else f"{outcome.title} ({outcome.remark})"
    empty = not any(counts[name] for name in ("holds", "undecided", "does not hold"))
    return Row(outcome.label, (Cell(runs, runs), *([Cell()] * 3 if empty else said), order, Cell(what, what)))
