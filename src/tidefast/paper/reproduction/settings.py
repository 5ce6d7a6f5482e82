"""The paper's tables of settings beside ours: nothing is run for them."""

from __future__ import annotations

from collections.abc import Mapping

from tidefast import resets
from tidefast.paper import published
from tidefast.report.sheet import Cell, Row, Sheet
from tidefast.resets.ablations import ABLATIONS
from tidefast.streams.ccc import LEVELS
from tidefast.streams.named import registry
from tidefast.streams.protocols.cifar_c import CifarC

NUMBERS = (14, 15, 25, 26)
_SHORT = {"elastic_transform": "elastic", "jpeg_compression": "jpeg"}
_SAID = {
    15: "The paper's rows Easy and Hard are swapped: with them exchanged, all three agree with ours, which are the "
    "generator's."
}


def sheet(number: int) -> tuple[Sheet, str]:
    """A table of settings, ours beside theirs, and whether they agree.

    >>> sheet(14)[1], sheet(15)[1], sheet(25)[1]
    ('7 of 7 rows agree', '1 of 3 rows agree', '3 of 3 rows agree')
    """
    table = published.table(number)
    ours = _hyperparameters() if number == 14 else _groups(number)
    rows, agreeing = [], 0
    for row in table.rows:
        theirs = [row.cells[column.key] for column in table.columns]
        pairs = list(zip(ours[row.method], theirs, strict=True))
        agrees = all(_same(here, there) for here, there in pairs)
        agreeing += agrees
        answer = "yes" if agrees else "no"
        rows.append(Row(row.method, (*(cell for pair in pairs for cell in pair), Cell(answer, answer))))
    verdict = f"{agreeing} of {len(rows)} rows agree"
    columns = (*(f"{column.label}: {whose}" for column in table.columns for whose in ("ours", "paper")), "agree")
    extra = [_SAID[number]] if number in _SAID and agreeing < len(rows) and _agree_when_swapped(number, ours) else []
    notes = (f"{verdict}.", *extra, *(f"On the paper's table: {note}" for note in table.notes))
    title = f"Table {number} ({table.id}). {table.title}"
    return Sheet(f"reproduced-{number}", title, table.label, columns, tuple(rows), notes), verdict


def _hyperparameters() -> dict[str, list[Cell]]:
    policies = (resets.ASR(), resets.ASR.for_vit())
    fixed = float(ABLATIONS["asr-momentum-constant"]["momentum"].rpartition("=")[2])
    settings = {
        "alpha_0": [policy.alpha0 for policy in policies],
        "mu_C (fixed value when not adaptive)": [fixed for _ in policies],
        "r_0": [policy.r0 for policy in policies],
        "lambda_r": [policy.lambda_r for policy in policies],
        "lambda_F (fixed value when not adaptive)": [policy.lambda0 for policy in policies],
        "lambda_0": [policy.lambda0 for policy in policies],
        "mu_0": [policy.mu0 for policy in policies],
    }
    return {name: [Cell(f"{value:g}", value) for value in values] for name, values in settings.items()}


def _groups(number: int) -> dict[str, list[Cell]]:
    groups: Mapping[str, tuple[str, ...]] = LEVELS
    if number != 15:
        benchmark = registry.get("cifar10-c" if number == 25 else "cifar100-c")
        assert issubclass(benchmark, CifarC)
        groups = benchmark.groups
    listed = {
        name: ", ".join(_SHORT.get(corruption, corruption) for corruption in types) for name, types in groups.items()
    }
    return {name.title(): [Cell(text, text)] for name, text in listed.items()}


def _same(ours: Cell, theirs: Cell) -> bool:
    if isinstance(ours.value, str):
        return set(ours.text.split(", ")) == set(theirs.text.split(", "))
    return ours.value == theirs.value


def _agree_when_swapped(number: int, ours: Mapping[str, list[Cell]]) -> bool:
    exchanged = {"Easy": "Hard", "Hard": "Easy"}
    theirs = {exchanged.get(row.method, row.method): row.cells["corruptions"] for row in published.table(number).rows}
    return all(_same(ours[name][0], cell) for name, cell in theirs.items())
