"""The page of the main comparison says what the committed results say, and compares what is comparable."""

from __future__ import annotations

import csv
from pathlib import Path

import collect
import paired
import pytest

from tidefast import bench

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "main-comparison.md").read_text()
UNMATCHED = {"EATA (weight 2000)"}
"""Bases whose RDumb has no fellow that resets as often as ASR: this one barely moves, whatever resets it."""


def rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / f"{name}.csv").open() as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("name", ["main", "rate"])
def test_every_table_of_the_page_is_what_the_results_give(name):
    means, by_stream, differences = paired.tables(RESULTS / f"{name}.csv")
    wanted = [*means, *by_stream, *differences] if name == "main" else by_stream
    lines = PAGE.splitlines()
    assert [line for part in wanted for line in part.splitlines() if line not in lines] == []


@pytest.mark.parametrize("name", ["rate"])
def test_every_experiment_of_a_sweep_has_its_row(name):
    wanted = {
        (one.stream.spelled, one.label, one.seed) for one in bench.experiments(ROOT / "benchmarks" / f"{name}.yaml")
    }
    assert wanted - {(row["stream"], row["contestant"], int(row["seed"])) for row in rows(name)} == set()


@pytest.mark.parametrize("name", ["rate"])
def test_wherever_rdumb_is_compared_it_also_resets_as_often_as_asr(name):
    there = {(row["stream"], row["seed"], row["contestant"]) for row in rows(name)}
    rdumb = {one for one in there if one[2].endswith(" + RDumb") and one[2].removesuffix(" + RDumb") not in UNMATCHED}
    assert rdumb
    assert {one for one in rdumb if (*one[:2], f"{one[2]} (matched)") not in there} == set()


def test_new_rows_join_those_of_their_stream_and_old_ones_are_replaced():
    there = [row for row in rows("rate") if row["contestant"] != "ROID"]
    kept = [dict(row) for row in there]
    new = [row for row in rows("rate") if row["contestant"] == "ROID"]
    again = {**there[0], "accuracy": "99.00"}
    found = collect.merged(there, [*new, again])
    assert there == kept
    assert found == [again, *there[1:], *new]
    assert collect.merged(found, rows("rate")) != found  # the old row is back in its place
