"""Every table and figure of the paper by one command."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from tidefast import cli, streams
from tidefast.bench import assembly
from tidefast.bench.metrics import PairedDifference
from tidefast.bench.results import RESULT
from tidefast.commands import bar, paper_runs
from tidefast.errors import UnknownNameError
from tidefast.paper import published, reproduction, study
from tidefast.paper.reproduction import catalogue, outcome, settings, targets
from tidefast.paper.reproduction.catalogue import Clock
from tidefast.paper.reproduction.claims import CLAIMS, Agreement, Claim, agreement, judge
from tidefast.paper.reproduction.quantity import MeasuredValue, StreamValue
from tidefast.paper.reproduction.rows import lines
from tidefast.paper.scale import FullScale, MiniScale


class Tiny(MiniScale):
    """A few batches of everything that is cut by steps."""

    steps = 6
    batch = 8
    every = 3


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(paper_runs, "setting", lambda options: Tiny())


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with the runs of table 24."""
    folder = tmp_path_factory.mktemp("runs")
    study.obtain(reproduction.plan(24, Tiny()).experiments, folder, jobs=1, threads=1)
    return folder


# -- everything is known ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", published.tables(), ids=lambda table: table.id)
def test_every_table_is_known_by_number_and_id(table):
    for name in (f"table {table.number}", f"tab:{table.id.replace('-', '_')}"):
        (target,) = reproduction.chosen([name], MiniScale())
        assert target.label == f"table {table.number}"
    assert bool(target.experiments) == (table.number not in settings.NUMBERS)


@pytest.mark.parametrize("label", targets.LABELS)
def test_every_figure_is_known_by_its_label(label):
    for words in ([f"fig:{label}"], ["figure", label], [label]):
        (target,) = reproduction.chosen(words, MiniScale())
        assert label in target.label.partition(" ")[2].split(", ")
    assert bool(target.experiments) == (label != targets.DIAGRAM)


def test_all_has_each_table_and_figure_once():
    labels = [target.label for target in reproduction.everything(MiniScale())]
    assert len(labels) == len(set(labels))
    said = " ".join(labels)
    assert all(f"table {number}" in labels for number in range(1, 38))
    assert all(label in said for label in targets.LABELS)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'collapse'"):
        reproduction.chosen(["fig:colapse"], MiniScale())


@pytest.mark.parametrize("setting", [MiniScale(), FullScale()], ids=lambda setting: setting.name)
def test_everything_it_would_run_can_be_assembled(setting):
    parts = {}
    for table in published.tables():
        if table.number not in settings.NUMBERS:
            for one in reproduction.plan(table.number, setting, all_rows=True).experiments:
                made = one.method, one.reset, one.optimizer, one.stream.name, one.model.name
                parts.setdefault(repr(made), one)
    for one in parts.values():
        assembly.check(one)
        known = {field.name for field in dataclasses.fields(streams.registry.get(one.stream.name))}
        assert one.stream.options.keys() <= known


# -- what a table becomes --------------------------------------------------------------------------------------------


def test_rows_of_ablations_stand_for_the_policies_they_name():
    assert [line.reset for line in lines(published.table(5))] == [
        *("never", "asr-interval-20000", "asr-full", "asr-no-recovery", "asr-strength-constant"),
        *("asr-momentum-constant", "ASR"),
    ]
    assert [(line.method, line.reset) for line in lines(published.table(9))][1:3] == [
        ("ETA", "asr-delay-0.001"),
        ("ETA", "asr-delay-0.01"),
    ]


def test_the_base_of_ablations_can_be_chosen():
    assert {one.method.name for one in reproduction.plan(16, MiniScale()).experiments} == {"eta"}
    assert {one.method.name for one in reproduction.plan(16, FullScale()).experiments} == {"roid"}
    chosen = reproduction.plan(16, MiniScale(), base="CMF")
    assert {one.method.name for one in chosen.experiments} == {"cmf"}
    assert chosen.lines[0].label.startswith("CMF + ASR")
    assert chosen.lines[0].published["hard"].value == published.table(16).rows[0].cells["hard"].value


def test_the_small_scale_leaves_rows_out_unless_asked_and_says_so():
    few, every = (reproduction.plan(33, MiniScale(), all_rows=asked) for asked in (False, True))
    assert (len(few.experiments), len(every.experiments)) == (7, 25)
    assert any(note.startswith("Left out") and "RoTTA" in note for note in few.notes)
    assert not any(note.startswith("Left out") for note in every.notes)


def test_the_full_scale_averages_the_nine_published_streams():
    plan = reproduction.plan(1, FullScale())
    hard = plan.cells["ETA + ASR", "hard"].experiments
    assert {(one.stream.options["speed"], one.seed) for one in hard} == {
        (speed, seed) for speed in (1000, 2000, 5000) for seed in (43, 44, 45)
    }
    assert len(plan.cells["ETA + ASR", "mean"].experiments) == 27


def test_in_d109_is_run_with_its_classes_alone():
    (one,) = reproduction.plan(34, FullScale()).cells["ETA", "mean"].experiments
    assert one.model.options["classes"] == "d109"


def test_vit_tiny_is_a_network_of_its_own_at_the_full_scale(timm):
    import torch

    from tidefast.core.specification import imported

    (name,) = {one.model.name for one in reproduction.plan(27, FullScale()).experiments}
    network = imported(name)(pretrained=False)
    with torch.no_grad():
        assert network(torch.rand(1, 3, 224, 224)).shape == (1, 1000)


def test_tables_of_settings_say_whether_ours_agree():
    sheet, said = settings.sheet(14)
    assert said == "7 of 7 rows agree"
    assert sheet.rows[0].cells[0].value == sheet.rows[0].cells[1].value == 0.5
    assert any("swapped" in note for note in settings.sheet(15)[0].notes)


# -- claims and order ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", CLAIMS)
def test_what_the_paper_says_holds_for_its_own_numbers(number):
    found = lines(published.table(number))
    values = {
        (line.name, key): float(cell.value)
        for line in found
        for key, cell in line.published.items()
        if isinstance(cell.value, (int, float))
    }
    names = [line.name for line in found if line.published]
    for verdict in judge(CLAIMS[number], values, names):
        assert verdict.margin is not None, verdict
        assert verdict.margin > 0, verdict
        assert verdict.measured == verdict.asked, verdict


def test_claims_are_judged_by_the_intervals_to_each_of_the_others():
    values = {("ASR", "mean"): 40.0, ("RDumb", "mean"): 39.7, ("none", "mean"): 30.0, ("RDumb", "hard"): 5.0}
    rows = ["ASR", "RDumb", "none", "COME"]
    claims = [
        Claim("ASR", ("none",)),
        Claim("ASR"),
        Claim("RDumb", ("ASR", "none")),
        Claim("none", ("RDumb",), "hard"),
    ]

    def within(error):
        def compare(above, below, column):
            points = values[above, column] - values[below, column]
            return PairedDifference(points, points - error, points + error)

        return compare

    verdicts = judge(claims, values, rows, within(0.5))
    assert [verdict.in_words for verdict in verdicts] == ["holds", "undecided", "undecided", "not measured"]
    assert judge([Claim("none", ("ASR",))], values, rows, within(0.5))[0].in_words == "does not hold"
    assert verdicts[1].margin == pytest.approx(0.3)
    assert (verdicts[1].measured, verdicts[1].asked) == (2, 3)
    assert judge([Claim("ASR")], values, rows, within(0.2))[0].in_words == "holds"
    assert judge([Claim("ASR")], values, rows)[0].in_words == "undecided"  # nothing says how sure the numbers are


def test_order_counts_pairs_that_are_decided_here_and_differ_there():
    ours = {"a": 10.0, "b": 20.0, "c": 20.4, "d": 5.0}
    theirs = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 1.0, "e": 9.0}

    def compare(one, other):
        points = ours[one] - ours[other]
        return PairedDifference(points, points - 0.5, points + 0.5)

    assert agreement([*ours], theirs, compare) == Agreement(same=4, pairs=4)  # not b and c here, nor a and d there
    assert agreement(["a", "b"], {"a": 2.0, "b": 1.0}, compare).share == 0.0
    assert agreement([], theirs, compare).share is None


def test_a_value_is_above_another_by_the_answers_on_the_same_streams():
    images, right = np.full(100, 16), np.tile([8, 7], 50)

    def value(number, *streams):
        return MeasuredValue(number, streams=tuple(StreamValue(level, number, (images, r)) for level, r in streams))

    one, other = value(62.5, ("easy", right + 2)), value(50.0, ("easy", right))
    found = one.over(other)
    assert (found.points, found.low, found.high, found.streams) == (12.5, 12.5, 12.5, 1)
    noisy = value(50.0, ("easy", np.random.default_rng(0).permutation(np.repeat([0, 16], 50))))
    assert value(50.5, ("easy", right)).over(noisy).verdict == "undecided"
    assert math.isnan(one.over(MeasuredValue(50.0)).low)


def test_wide_tables_stand_one_above_the_other_and_narrow_ones_side_by_side():
    narrow, wide = (reproduction.plan(number, MiniScale()) for number in (5, 22))
    sheet = outcome.sheet(narrow, {("ROID", "hard"): MeasuredValue(12.5)})
    assert sheet.columns[:2] == ("CCC-Easy: ours", "CCC-Easy: paper")
    assert [cell.text for cell in sheet.rows[0].cells[4:6]] == ["12.50", "11.81"]
    assert sheet.rows[0].cells[0].text == "-"
    labels = [row.label for row in outcome.sheet(wide, {}).rows]
    assert labels[:2] == ["ETA: ours", "ETA: paper"]


# -- the command -----------------------------------------------------------------------------------------------------


def test_a_table_is_shown_beside_the_papers_and_finished_runs_are_left_alone(tiny, finished, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob(RESULT)}
    assert len(before) == 6
    assert cli.main(["reproduce", "table", "24", "--runs", str(finished), "--format", "json"]) == 0
    table, claims = json.loads(capsys.readouterr().out)
    assert table["columns"] == [f"batch size {size}: {whose}" for size in (2, 4) for whose in ("ours", "paper")]
    (labelled,) = [row for row in table["rows"] if row["method"] == "ROID + ASR"]
    ours, theirs = (cell["value"] for cell in labelled["cells"][2:])
    runs = study.there(reproduction.plan(24, Tiny()).experiments, finished).values()
    assert ours in [pytest.approx(100 * run.accuracy) for run in runs if run.experiment.batch == 4]
    assert theirs == 25.58
    assert [row["claim"].partition(" above")[0] for row in claims["rows"]] == ["ROID + ASR", "ROID + ASR"]
    assert {path: path.stat().st_mtime_ns for path in finished.rglob(RESULT)} == before


def test_without_running_what_is_not_there_is_a_dash(tiny, tmp_path, capsys):
    assert cli.main(["reproduce", "13", "--no-run", "--runs", str(tmp_path), "--format", "csv"]) == 0
    assert re.search(r"^ETA,,12.64", capsys.readouterr().out, re.MULTILINE)
    assert not list(tmp_path.iterdir())


def test_several_come_in_one_file_with_a_summary_first(tiny, finished, tmp_path, capsys):
    out = tmp_path / "all.md"
    command = ["reproduce", "24", "14", "overview", "--no-run", "--runs", str(finished), "--format", "markdown"]
    assert cli.main([*command, "--out", str(out)]) == 0
    text = out.read_text()
    assert text.startswith("## The paper's tables and figures, reproduced")
    assert "| table 24 | 6 of 6 |" in text
    assert "| table 14 | none needed |" in text
    assert "## Table 24: the paper's claims" in text
    assert "figure overview: no data" in capsys.readouterr().err


@pytest.mark.slow
def test_a_figure_is_drawn_by_its_analysis_also_after_ctrl_c(tmp_path, monkeypatch, capsys):
    runs, drawn = tmp_path / "runs", tmp_path / "drawn"
    command = ["reproduce", "fig:C_t_vs_acc", "--runs", str(runs), "--figures", str(drawn), "--jobs", "1"]
    monkeypatch.setattr(paper_runs, "setting", lambda options: Longer())
    with monkeypatch.context() as patched:
        patched.setattr(bar, "of_runs", ctrl_c_after_a_second)
        former = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            assert cli.main(command) == 130
        finally:
            signal.signal(signal.SIGINT, former)
    before = {path: path.stat().st_mtime_ns for path in runs.rglob(RESULT)}
    assert len(before) < 2
    assert cli.main([*command, "--no-run"]) == 0
    assert "drawn when its runs are finished" in capsys.readouterr().err
    assert cli.main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list(runs.rglob(RESULT))) == 2
    assert {"concentration.png", "concentration.md"} <= {path.name for path in drawn.iterdir()}
    assert "ETA + ASR, Hard" in capsys.readouterr().out


class Longer(Tiny):
    steps = 100


def ctrl_c_after_a_second():
    """A watcher of a sweep, which tells it how far it is: at once, and then every second from a thread."""
    pressed = []

    def watch(progress):
        if threading.current_thread() is not threading.main_thread() and not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    return contextlib.nullcontext(watch)


def test_the_list_says_what_is_needed_finished_and_left(tiny, finished, capsys):
    assert cli.main(["reproduce", "13", "24", "--list", "--runs", str(finished), "--format", "json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)
    rows = {row[""]: [cell["value"] for cell in row["cells"]] for row in table["rows"]}
    assert rows["table 24"][:4] == ["bundled", 6, 6, "-"]
    assert rows["table 13"][:4] == ["bundled", 9, 0, "1 min"]
    assert rows["all"][1:3] == [15, 6]


def test_at_the_full_scale_missing_files_are_named_before_anything_runs(tmp_path, capsys):
    assert cli.main(["reproduce", "33", "--full", "--runs", str(tmp_path)]) == 2
    assert "give --imagenet-c" in capsys.readouterr().err
    files = {"in-c": {"root": "x"}}
    assert catalogue.absent(reproduction.plan(33, FullScale(files)).experiments) == ["--source"]  # of EATA and others
    assert catalogue.absent(reproduction.plan(33, FullScale({**files, "source": {"path": "y"}})).experiments) == []
    assert catalogue.absent(reproduction.plan(33, MiniScale()).experiments) == []


def test_finished_runs_are_the_measure_of_time(finished):
    plan = reproduction.plan(24, Tiny())
    seconds = [json.loads(path.read_text())["seconds_per_batch"] for path in finished.rglob(RESULT)]
    estimate = Clock(finished).seconds(plan.experiments, jobs=1)
    assert estimate is not None
    assert estimate >= 6 * 6 * min(seconds)
