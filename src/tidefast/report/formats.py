"""Tables as text: for the terminal, Markdown, LaTeX, CSV and JSON; and as HTML for the page."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from tidefast.report.markup import Markup, element
from tidefast.report.sheet import COLLAPSED, UNDECIDED, Cell, Row, Sheet

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 100_000
GAP = 3
"""Blanks between two columns on a terminal."""
SIGNS = {"collapsed": "†", "partial": "…", "undecided": "?"}
MEANINGS = {"collapsed": COLLAPSED, "partial": "runs that are not finished", "undecided": UNDECIDED}
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "…": r"\dots{}",
    "†": r"\dag{}",
    "→": r"$\to$",
}


def render(sheets: Sequence[Sheet], format_: str) -> str:
    """Tables as text in one of `FORMATS`."""
    return FORMATS[format_](sheets)


def show(sheets: Sequence[Sheet], console: Console) -> None:
    """Print tables on a terminal, in blocks of columns where one is wider than the screen."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    coloured = console.color_system is not None
    for sheet in sheets:
        console.print(Text(sheet.title, style="bold"))
        labels = max([len(sheet.corner), *(len(row.label) for row in sheet.rows)])
        for widths in _blocks(sheet, console.width - labels):
            table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
            table.add_column(Text(sheet.corner), width=labels)
            for at, width in widths.items():
                justify: Literal["left", "right"] = "left" if _wordy(sheet, at) else "right"
                table.add_column(Text(sheet.columns[at]), justify=justify, width=width)
            for row, ends in _with_ends(sheet.rows):
                cells = [_painted(row.cells[at], coloured) for at in widths]
                table.add_row(Text(row.label), *(Text(text, style=style) for text, style in cells), end_section=ends)
            console.print(table)
        for note in (*_key(sheet, "grey" if coloured else None), *sheet.notes):
            console.print(Text(note, style="italic" if coloured else ""))
        console.print()


def html(sheet: Sheet) -> Markup:
    """The table as an element of the page."""
    headings = [
        element("th", name, scope="col", class_="words" if _wordy(sheet, at) else None)
        for at, name in enumerate(sheet.columns)
    ]
    head = element("tr", element("th", sheet.corner, scope="col"), *headings)
    body = [
        element(
            "tr",
            element("th", row.label, scope="row"),
            *map(_html_cell, row.cells),
            class_="ends" if ends else None,
        )
        for row, ends in _with_ends(sheet.rows)
    ]
    caption_text = " ".join([*(f"{line}." for line in _key(sheet, "Grey")), *sheet.notes])
    caption = [element("caption", element("span", caption_text))] if caption_text else []
    return element(
        "div",
        element("table", *caption, element("thead", head), element("tbody", *body)),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=sheet.title,
    )


def _html_cell(cell: Cell) -> Markup:
    shown = _signed(cell, coloured=True)
    content = element("strong", shown) if cell.best else element("span", shown)
    class_ = "words" if isinstance(cell.value, str) else "below" if cell.collapsed else None
    return element("td", content, class_=class_, title=COLLAPSED if cell.collapsed else None)


def _terminal(sheets: Sequence[Sheet]) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=WIDE, color_system=None)
    show(sheets, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO of the line above
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"


def _markdown(sheets: Sequence[Sheet]) -> str:
    return "\n".join(_markdown_one(sheet) for sheet in sheets)


def _markdown_one(sheet: Sheet) -> str:
    lines = [f"## {sheet.title}", "", _pipes([sheet.corner, *sheet.columns])]
    lines.append(_pipes(["---", *(["---:"] * len(sheet.columns))]))
    for row in sheet.rows:
        cells = [f"**{_signed(cell)}**" if cell.best else _signed(cell) for cell in row.cells]
        lines.append(_pipes([row.label, *cells]))
    notes = [*_key(sheet), *sheet.notes]
    return "\n".join([*lines, *(["", *(f"{note}  " for note in notes[:-1]), notes[-1]] if notes else []), ""])


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _latex(sheets: Sequence[Sheet]) -> str:
    return "% needs \\usepackage{booktabs,xcolor}\n" + "\n".join(_latex_one(sheet) for sheet in sheets)


def _latex_one(sheet: Sheet) -> str:
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(sheet.title)}}}",
        rf"\label{{tab:{sheet.key}}}",
        rf"\begin{{tabular}}{{l{'r' * len(sheet.columns)}}}",
        r"\toprule",
        " & ".join(map(_tex, (sheet.corner, *sheet.columns))) + r" \\",
        r"\midrule",
    ]
    for at, (row, ends) in enumerate(_with_ends(sheet.rows), start=1):
        lines.append(" & ".join([_tex(row.label), *map(_latex_cell, row.cells)]) + r" \\")
        if ends and at < len(sheet.rows):
            lines.append(r"\midrule")
    lines += [r"\bottomrule", r"\end{tabular}"]
    notes = [*(f"{line}." for line in _key(sheet, "Gray")), *sheet.notes]
    lines += [rf"\par\smallskip\footnotesize {_tex(note)}" for note in notes]
    return "\n".join([*lines, r"\end{table}", ""])


def _latex_cell(cell: Cell) -> str:
    text = _tex(_signed(cell, coloured=True))
    text = rf"\textbf{{{text}}}" if cell.best else text
    return rf"\textcolor{{gray}}{{{text}}}" if cell.collapsed else text


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _csv(sheets: Sequence[Sheet]) -> str:
    if len(sheets) == 1:
        return _csv_one(sheets[0])
    return "\n".join(f"# {sheet.title}\n{_csv_one(sheet)}" for sheet in sheets)


def _csv_one(sheet: Sheet) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    facets = [(at, facet) for at in range(len(sheet.columns)) for facet in _facets(sheet, at)]
    writer.writerow([sheet.corner, *(f"{sheet.columns[at]} {facet}".strip() for at, facet in facets)])
    for row in sheet.rows:
        writer.writerow([row.label, *(_facet(row.cells[at], facet) for at, facet in facets)])
    return file.getvalue()


def _facets(sheet: Sheet, at: int) -> list[str]:
    """Which columns of a CSV file one column of the table becomes."""
    cells = [row.cells[at] for row in sheet.rows]
    facets = [""]
    facets += ["std"] if any(cell.std is not None for cell in cells) else []
    facets += ["low", "high"] if any(cell.interval is not None for cell in cells) else []
    facets += ["n"] if any(cell.count is not None for cell in cells) else []
    return [*facets, *(["mark"] if any(cell.marks for cell in cells) else [])]


def _facet(cell: Cell, facet: str) -> str:
    if facet == "mark":
        return " ".join(cell.marks)
    low, high = cell.interval or (None, None)
    value = {"": cell.value, "std": cell.std, "low": low, "high": high, "n": cell.count}[facet]
    return "" if value is None else value if isinstance(value, str) else f"{value:.10g}"


def _json(sheets: Sequence[Sheet]) -> str:
    tables = [
        {
            "key": sheet.key,
            "title": sheet.title,
            "columns": list(sheet.columns),
            "rows": [
                {sheet.corner: row.label, "group": row.group, "cells": [_json_cell(cell) for cell in row.cells]}
                for row in sheet.rows
            ],
            "notes": list(sheet.notes),
        }
        for sheet in sheets
    ]
    return json.dumps(tables, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _json_cell(cell: Cell) -> dict[str, object]:
    interval = None if cell.interval is None else list(cell.interval)
    values: dict[str, object] = {"value": cell.value, "std": cell.std, "interval": interval, "n": cell.count}
    values["marks"] = cell.marks
    return {name: value for name, value in values.items() if name == "value" or value not in (None, [])}


def _painted(cell: Cell, coloured: bool) -> tuple[str, str]:
    if not coloured:
        return _signed(cell), ""
    style = "bright_black" if cell.collapsed else "bold" if cell.best else ""
    return _signed(cell, coloured=True), style


def _signed(cell: Cell, coloured: bool = False) -> str:
    """The text of a cell with its marks, but for those that have a colour."""
    hidden = "collapsed" if coloured else ""
    return cell.text + "".join(SIGNS[mark] for mark in cell.marks if mark in SIGNS and mark != hidden)


def _key(sheet: Sheet, colour: str | None = None) -> list[str]:
    """What the marks mean, if there are any; `colour`: what marks the collapsed instead of their sign."""
    signs = SIGNS | ({"collapsed": colour} if colour else {})
    return [f"{signs[mark]}: {meaning}" for mark, meaning in MEANINGS.items() if sheet.has(mark)]


def _blocks(sheet: Sheet, room: int) -> Iterator[dict[int, int]]:
    """Columns that fit beside the labels, screen after screen, with their widths."""
    block: dict[int, int] = {}
    for at in range(len(sheet.columns)):
        width = _least(sheet, at)
        if block and sum(block.values()) + GAP * (len(block) + 1) + width > room:
            yield _spread(sheet, block, room)
            block = {}
        block[at] = width
    if block:
        yield _spread(sheet, block, room)


def _wordy(sheet: Sheet, at: int) -> bool:
    """Whether a column holds text and no numbers."""
    return all(isinstance(row.cells[at].value, str) for row in sheet.rows)


def _least(sheet: Sheet, at: int) -> int:
    """What a column needs for words, and for numbers with all that belongs to them, to stay in one piece."""
    cells = [row.cells[at] for row in sheet.rows]
    pieces = [cell.text.split() if isinstance(cell.value, str) else [_signed(cell)] for cell in cells]
    return max(map(len, [*sheet.columns[at].split(), *itertools.chain(*pieces)]))


def _spread(sheet: Sheet, block: dict[int, int], room: int) -> dict[int, int]:
    """The same columns as wide as they would like to be while there is room, the widest first."""
    spare = room - sum(block.values()) - GAP * len(block)
    wanted = {at: max(map(len, [sheet.columns[at], *(_signed(row.cells[at]) for row in sheet.rows)])) for at in block}
    widths = dict(block)
    for at in sorted(block, key=lambda at: -wanted[at]):
        more = max(0, min(wanted[at] - block[at], spare))
        widths[at] += more
        spare -= more
    return widths


def _with_ends(rows: Sequence[Row]) -> Iterator[tuple[Row, bool]]:
    """Rows, each with whether a gap follows it: around every group of more than one row."""
    sizes = Counter(row.group for row in rows)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        apart = following is None or row.group != following.group
        yield row, apart and (following is None or max(sizes[row.group], sizes[following.group]) > 1)


FORMATS: dict[str, Callable[[Sequence[Sheet]], str]] = {
    "terminal": _terminal,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
    "json": _json,
}
"""By name: from tables to text."""
