"""The published tables: complete, consistent in themselves, and shown as printed."""

from __future__ import annotations

import argparse
import csv
import io
import json

import numpy as np
import pytest

from tidefast.commands import paper as command
from tidefast.errors import UnknownNameError
from tidefast.paper import published
from tidefast.report import formats

NUMBERS = range(1, 38)


def run(capsys, *arguments: str) -> str:
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    command.run(parser.parse_args(arguments))
    return capsys.readouterr().out


def value(table: int, method: str, column: str) -> float:
    return published.table(table).row(method).cells[column].value


def test_there_are_37_tables_in_order():
    assert [table.number for table in published.tables()] == list(NUMBERS)
    assert len({table.id for table in published.tables()}) == 37
    assert sum(len(row.cells) for table in published.tables() for row in table.rows) == 3879


@pytest.mark.parametrize("format_", formats.FORMATS)
def test_every_table_can_be_written(format_):
    for number in NUMBERS:
        sheet = published.table(number).sheet()
        written = formats.render([sheet], format_)
        for row in sheet.rows:
            for cell in row.cells:
                if isinstance(cell.value, float):
                    shown = f"{cell.value:.10g}" if format_ == "csv" else str(cell.value)
                    assert (shown if format_ in ("csv", "json") else cell.text.split(" ")[0]) in written


def test_known_numbers_are_there():
    assert value(4, "Source", "ccc_hard") == 1.27
    assert value(4, "ROID + ASR", "ccc_hard") == 22.21
    assert value(33, "eta+asr", "visit20") == 39.10
    assert value(10, "roid", "seconds_per_batch") == 0.125
    assert published.table(5).row("ROID").cells["C_t"].text == "no"
    assert published.table(15).row("Medium").cells["corruptions"].value.count(",") == 12


def test_gray_and_bold_are_kept():
    cells = published.table("main").row("ETA").cells
    assert cells["ccc_hard"].collapsed
    assert not cells["ccc_easy"].collapsed
    assert published.table("main").row("ROID + ASR").cells["ccc_hard"].best


def test_gray_cells_lie_below_the_source():
    table = published.table(4)
    source = table.row("Source").cells
    for row in table.rows:
        for key, cell in row.cells.items():
            assert cell.collapsed == (cell.value < source[key].value), (row.method, key)


@pytest.mark.parametrize("number", [28, 29, 30, 31, 32, 33, 34, 35, 36, 37])
def test_printed_means_and_deviations_follow_from_the_cells(number):
    for row in published.table(number).rows:
        values = np.array([cell.value for key, cell in row.cells.items() if key != "mean"])
        assert row.cells["mean"].value == pytest.approx(values.mean(), abs=0.0151), row.method
        assert row.cells["mean"].std == pytest.approx(values.std(), abs=0.0601), row.method


def test_the_main_tables_repeat_the_appendix():
    for level, number in (("easy", 28), ("medium", 29), ("hard", 30)):
        for row in published.table(1).rows:
            assert row.cells[level].value == pytest.approx(value(number, row.method, "mean"), abs=0.011)
        for row in published.table(4).rows:
            assert row.cells[f"ccc_{level}"].value == pytest.approx(value(number, row.method, "mean"), abs=0.011)


def test_anomalies_are_printed_below(capsys):
    assert "seed 45" in run(capsys, "5")
    assert "swapped" in run(capsys, "corruption-types")
    assert "below the source model" in run(capsys, "3")


def test_the_list_names_every_table(capsys):
    said = run(capsys)
    for table in published.tables():
        assert table.id in said
        assert table.title in said
    assert "214 batches with RDumb, 32 with ASR" in said


def test_a_method_is_found_wherever_it_is(capsys):
    said = run(capsys, "--find", "ROID+ASR")
    assert "1 add-on" in said
    assert "37 apx-hard-vit" in said
    assert "CCC-Hard 22.21 ± 1.2" in said
    assert "ETA + ASR" not in said


def test_several_tables_in_one_file(capsys, tmp_path):
    path = tmp_path / "tables.md"
    assert run(capsys, "1", "vit", "--format", "markdown", "--out", str(path)) == ""
    text = path.read_text()
    assert text.count("\n## ") + text.startswith("## ") == 2
    assert "| ETA + ASR | 51.20 ± 0.8 | 41.88 ± 1.6 | 17.10 ± 2.1 | **36.73** |" in text


def test_csv_is_numbers(capsys):
    rows = list(csv.DictReader(io.StringIO(run(capsys, "4", "--format", "csv"))))
    eta = next(row for row in rows if row["method"] == "ETA")
    assert float(eta["CCC-Hard"]) == 0.32
    assert float(eta["CCC-Hard std"]) == 0.1
    assert eta["CCC-Hard mark"] == "collapsed"


def test_json_is_json(capsys):
    (table,) = json.loads(run(capsys, "4", "--format", "json"))
    row = next(row for row in table["rows"] if row["method"] == "ETA")
    assert row["cells"][2] == {"value": 0.32, "std": 0.1, "marks": ["collapsed"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["38"], "no table '38'"),
        (["mian"], "did you mean 'main'"),
        (["--find", "xyzzy"], "no row"),
        (["4", "--find", "eta"], "not both"),
        (["4", "--out", "/nowhere/at/all.txt"], "there is no folder"),
    ],
)
def test_bad_requests_are_refused_in_one_line(capsys, arguments, said):
    with pytest.raises(ValueError, match=said) as caught:
        run(capsys, *arguments)
    assert "\n" not in str(caught.value)


def test_an_unknown_table_is_an_unknown_name():
    with pytest.raises(UnknownNameError):
        published.table(0)
