"""Measured beside published numbers."""

from __future__ import annotations

from collections.abc import Callable

from tidefast.report import protocols
from tidefast.report.comparison import Comparison, mean
from tidefast.report.entries import Column, Contestant, Entry
from tidefast.report.sheet import Cell, Row, Sheet, number


def reproduced(comparison: Comparison) -> Sheet:
    """Runs that correspond to published ones: measured, published, difference. No rows when there are none."""
    rows = _rows(comparison, lambda entry: protocols.published(entry.experiment, entry.batches), _with_difference)
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
        lambda entry: protocols.orientation(entry.experiment),
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


def _rows(
    comparison: Comparison,
    counterpart: Callable[[Entry], Cell | None],
    cells: Callable[[Cell, Cell], list[Cell]],
) -> tuple[Row, ...]:
    arrangement = comparison.arrangement
    empty = len(cells(Cell(), Cell()))
    rows = []
    for row in arrangement.rows:
        found = [_pair(comparison, row, column, counterpart) for column in arrangement.columns]
        if any(found):
            flat = [cell for pair in found for cell in (cells(*pair) if pair else [Cell()] * empty)]
            rows.append(Row(arrangement.label(row), tuple(flat), arrangement.group(row)))
    return tuple(rows)


def _pair(
    comparison: Comparison, row: Contestant, column: Column, counterpart: Callable[[Entry], Cell | None]
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
