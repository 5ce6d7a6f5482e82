"""Tables and the page of a set of runs."""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from test_report import Outline
from tidefast import bench, streams
from tidefast.bench import Experiment, metrics, protocols
from tidefast.commands import report as command
from tidefast.errors import FolderError
from tidefast.paper import beside, scores, study
from tidefast.paper.analyses import collapse
from tidefast.report import formats, headline, runs_page
from tidefast.report.arrangement import Arrangement, Entry, read
from tidefast.report.comparison import Comparison
from tidefast.report.data import ReportData, history_of
from tidefast.report.sheet import Cell, Row, Sheet, number


def entry(
    method: str | dict,
    accuracy: float,
    *,
    reset: str = "never",
    stream: str | dict = "ccc-mini:level=hard",
    seed: int = 43,
    seen: int = 100,
    total: int = 100,
    visits: list[float] | None = None,
    resets: int = 0,
    **fields,
) -> Entry:
    """A run with this accuracy in percent."""
    experiment = Experiment(stream, method, reset=reset, seed=seed, **fields)
    share = accuracy / 100
    summary = {
        "batches": seen,
        "accuracy": share if seen else None,
        "domain_mean": share + 0.01,
        "visits": visits,
        "visit_mean": None if visits is None else float(np.mean(visits)),
        "knowledge_recovery": None if visits is None else [0.0] * len(visits),
        "resets": {
            "count": resets,
            "gap": seen / resets if resets else None,
            "mean_depth": 0.75 if resets else None,
            "detrimental_share": 0.4 if resets else None,
            "detrimental_by_chance": 0.45 if resets else None,
            "detrimental_mean": -0.1155 if resets else None,
            "beneficial_mean": 0.0432 if resets else None,
            "recovery_delay": 214.0 if resets else None,
        },
        "concentration_accuracy": {"r": -0.88, "magnitude": 0.88, "sign": -1},
        "nonfinite": 0,
        "seconds_per_batch": 0.125,
    }
    return Entry(Path("x"), experiment, seen == total, False, total, summary)


def comparison(*runs: Entry, pool: tuple[str, ...] = (), **options) -> Comparison:
    return Comparison(Arrangement(runs, pool), **options)


def texts(sheet: Sheet) -> dict[str, list[str]]:
    return {row.label: [cell.text for cell in row.cells] for row in sheet.rows}


def by_label(sheet: Sheet) -> dict[str, tuple[Cell, ...]]:
    return {row.label: row.cells for row in sheet.rows}


def seeds(method: str, *accuracies: float, **fields) -> list[Entry]:
    return [entry(method, value, seed=43 + at, **fields) for at, value in enumerate(accuracies)]


# Accuracy


def test_cells_are_mean_and_population_deviation_over_seeds():
    sheet = comparison(*seeds("source", 1, 1, 1), *seeds("eta", 10, 20, 30)).accuracy()
    assert texts(sheet) == {"Source": ["1.0 ± 0.0"], "ETA": ["20.0 ± 8.2"]}  # sqrt(200 / 3), not sqrt(200 / 2)
    assert by_label(sheet)["ETA"][0].count == 3
    assert "over 3 runs" in sheet.notes[0]


def test_n_is_shown_where_it_differs():
    sheet = comparison(*seeds("eta", 10, 20), entry("tent", 5)).accuracy()
    assert texts(sheet) == {"ETA": ["15.0 ± 5.0 (n 2)"], "Tent": ["5.0 (n 1)"]}


def test_rows_stand_with_their_base_method_plain_first_asr_last():
    runs = [
        entry("roid", 5, reset="asr"),
        entry("eta", 4, reset="asr"),
        entry("eta", 3, reset="periodic"),
        entry("roid", 2),
        entry("eta", 1),
        entry("source", 0),
    ]
    sheet = comparison(*runs).accuracy()
    assert list(texts(sheet)) == ["Source", "ETA", "ETA + RDumb", "ETA + ASR", "ROID", "ROID + ASR"]
    assert [row.group for row in sheet.rows] == ["source", "eta", "eta", "eta", "roid", "roid"]


def test_levels_go_from_easy_to_hard_and_their_mean_is_of_all_or_none():
    runs = [
        entry("eta", 10, stream="ccc-mini:level=hard"),
        entry("eta", 20, stream="ccc-mini:level=easy"),
        entry("eta", 60, stream="ccc-mini:level=medium"),
        entry("tent", 7, stream="ccc-mini:level=easy"),
    ]
    sheet = comparison(*runs).accuracy()
    assert [name.split("=")[-1] for name in sheet.columns] == ["easy", "medium", "hard", "mean"]
    assert texts(sheet)["ETA"] == ["20.0", "60.0", "10.0", "30.0"]
    assert texts(sheet)["Tent"] == ["7.0", "-", "-", "-"]


def test_collapsed_is_below_the_source_on_the_same_stream_and_seed():
    runs = [*seeds("source", 10, 30), *seeds("tent", 9, 28), *seeds("eta", 12, 29)]
    cells = by_label(comparison(*runs).accuracy())
    assert cells["Tent"][0].collapsed
    assert not cells["ETA"][0].collapsed
    assert not cells["Source"][0].collapsed


def test_collapse_is_judged_on_shared_seeds_only():
    runs = [entry("source", 30, seed=44), entry("eta", 10, seed=43), entry("eta", 31, seed=44)]
    assert not by_label(comparison(*runs).accuracy())["ETA"][0].collapsed  # 20.5 on average, but 31 against 30


def test_without_a_source_run_collapse_is_not_judged_and_that_is_said():
    sheet = comparison(entry("eta", 0.1)).accuracy()
    assert not sheet.has("collapsed")
    assert "Without a run of the source model" in sheet.notes[-1]


def test_other_networks_do_not_lend_their_source():
    runs = [entry("source", 50, model="bundled-vit"), entry("eta", 10)]
    assert not comparison(*runs).accuracy().has("collapsed")


def test_the_best_of_a_column_stands_out():
    cells = by_label(comparison(*seeds("source", 1, 1), *seeds("eta", 5, 5), *seeds("tent", 9, 2)).accuracy())
    assert [label for label, row in cells.items() if row[0].best] == ["Tent"]


# Never mixed


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"batch": 32}, "batch 32"),
        ({"model": "bundled-vit"}, "model bundled-vit"),
        ({"optimizer": "adam:lr=1e-3"}, "optimizer adam lr=0.001"),
    ],
)
def test_runs_with_other_settings_get_a_row_of_their_own(fields, said):
    sheet = comparison(entry("eta", 10), entry("eta", 20, seed=44, **fields)).accuracy()
    assert len(sheet.rows) == 2
    assert any(said in row.label for row in sheet.rows)
    assert {row.cells[0].text for row in sheet.rows} == {"10.0", "20.0"}


def test_runs_of_another_length_get_a_column_of_their_own():
    sheet = comparison(entry("eta", 10, steps=100), entry("eta", 20, steps=200), entry("eta", 30)).accuracy()
    assert sheet.columns[:3] == (
        "ccc-mini level=hard, all batches",
        "ccc-mini level=hard, 100 batches",
        "ccc-mini level=hard, 200 batches",
    )


def test_options_of_a_method_make_another_contestant():
    sheet = comparison(entry("eta", 10), entry("eta:entropy_margin=0.3", 20, seed=44)).accuracy()
    assert list(texts(sheet)) == ["ETA", "ETA (entropy_margin 0.3)"]


def test_titles_replace_options_unless_two_are_the_same():
    titled = {"name": "eta", "entropy_margin": 0.3, "title": "Ours"}
    assert list(texts(comparison(entry(titled, 10), entry("eta", 20)).accuracy())) == ["ETA", "Ours"]
    other = {**titled, "entropy_margin": 0.5}
    labels = list(texts(comparison(entry(titled, 10), entry(other, 20)).accuracy()))
    assert labels == ["Ours, eta entropy_margin=0.3, never", "Ours, eta entropy_margin=0.5, never"]


def test_a_titled_stream_heads_its_column():
    stream = {"name": "ccc-mini", "level": "hard", "title": "Hard"}
    assert comparison(entry("eta", 10, stream=stream)).accuracy().columns == ("Hard",)
    runs = [entry("eta", 10, stream=stream), entry("eta", 10, stream={**stream, "level": "easy"})]
    assert comparison(*runs).accuracy().columns[0] == "Hard (ccc-mini level=easy)"


def test_the_usual_batch_size_is_the_same_spelt_out_or_not():
    sheet = comparison(entry("eta", 10), entry("eta", 20, seed=44, batch=64)).accuracy()
    assert texts(sheet) == {"ETA": ["15.0 ± 5.0"]}


def test_the_optimizer_of_the_source_model_does_not_matter():
    runs = [entry("source", 9, optimizer="adam"), entry("eta", 5, optimizer="sgd:lr=1e-3")]
    sheet = comparison(*runs).accuracy()
    assert list(texts(sheet)) == ["Source", "ETA"]
    assert by_label(sheet)["ETA"][0].collapsed


def test_published_protocols_average_over_speeds_and_say_so():
    runs = [
        entry("eta", 10 * at, stream=f"ccc:level=hard,speed={speed}") for at, speed in enumerate((1000, 2000, 5000))
    ]
    sheet = comparison(*runs).accuracy()
    assert sheet.columns == ("ccc level=hard",)
    assert texts(sheet)["ETA"] == ["10.0 ± 8.2"]
    assert "speed 1000, 2000, 5000" in sheet.notes[0]


def test_small_streams_average_over_speeds_only_when_told_to():
    runs = [entry("eta", 10 * at, stream=f"ccc-mini:speed={speed}") for at, speed in enumerate((80, 160))]
    assert len(comparison(*runs).accuracy().columns) == 3
    assert comparison(*runs, pool=("speed",)).accuracy().columns == ("ccc-mini",)


def test_a_seed_of_the_stream_is_a_repetition():
    runs = [entry("eta", 10 * seed, stream=f"ccc-mini:seed={seed}") for seed in (1, 2)]
    assert texts(comparison(*runs).accuracy())["ETA"] == ["15.0 ± 5.0"]


@pytest.mark.parametrize(
    ("stream", "kind", "expected"),
    [
        ("ccc-mini", "auto", "10.0"),
        ("cin-c-mini", "auto", "11.0"),
        ("in-c-recurring-mini", "auto", "30.0"),
        ("ccc-mini", "domains", "11.0"),
        ("in-c-recurring-mini", "images", "10.0"),
    ],
)
def test_each_benchmark_has_its_own_kind_of_accuracy(stream, kind, expected):
    run = entry("eta", 10, stream=stream, visits=[0.2, 0.4])
    assert texts(comparison(run, accuracy=kind).accuracy())["ETA"] == [expected]


# Unfinished


def test_unfinished_runs_are_marked_and_left_out():
    runs = [entry("eta", 10), entry("eta", 90, seed=44, seen=30), entry("tent", 50, seen=37)]
    sheet = comparison(*runs).accuracy()
    cells = by_label(sheet)
    assert (cells["ETA"][0].value, cells["ETA"][0].count, cells["ETA"][0].partial) == (pytest.approx(10), 1, True)
    assert cells["Tent"][0].text == "37% seen"
    assert "2 of 3 runs are not finished: left out" in " ".join(sheet.notes)


def test_unfinished_runs_count_when_asked():
    runs = [entry("eta", 10), entry("eta", 90, seed=44, seen=30)]
    sheet = comparison(*runs, partial=True).accuracy()
    assert by_label(sheet)["ETA"][0].value == pytest.approx(50)
    assert by_label(sheet)["ETA"][0].partial


def test_a_run_that_is_ahead_is_not_judged_by_a_source_that_is_behind():
    runs = [entry("source", 30, seen=20), entry("eta", 10, seen=60)]
    assert not comparison(*runs, partial=True).accuracy().has("collapsed")
    runs = [entry("source", 30, seen=20), entry("eta", 10, seen=20)]
    assert comparison(*runs, partial=True).accuracy().has("collapsed")


# The other tables


def test_gains_are_paired_by_seed():
    runs = [*seeds("source", 10, 20), *seeds("eta", 15, 20), *seeds("eta", 18, 28, 99, reset="asr")]
    sheet = comparison(*runs).gains()
    assert [name.rpartition(", ")[2] for name in sheet.columns] == ["over source", "over its base"]
    assert texts(sheet) == {"ETA": ["+2.5", "-"], "ETA + ASR": ["+8.0", "+5.5"]}
    assert by_label(sheet)["ETA + ASR"][1].count == 2
    assert all(cell.undecided for row in sheet.rows for cell in row.cells if cell.value is not None)  # two streams
    assert "over 2 streams" in sheet.notes[0]
    sheet = comparison(*seeds("source", *[10] * 6), *seeds("eta", 12, 13, 14, 12, 13, 14)).gains()
    (cell,) = by_label(sheet)["ETA"]
    assert (round(cell.value, 9), cell.count, cell.marks) == (3.0, 6, [])
    assert 12 < 10 + cell.interval[0] < 13 < 10 + cell.interval[1] < 14


def test_gains_of_a_single_stream_are_undecided_unless_its_batches_tell():
    plain, better = entry("eta", 30), entry("eta", 31, reset="asr")
    (cell,) = by_label(comparison(plain, better).gains())["ETA + ASR"]
    assert (cell.text, cell.marks) == ("+1.0", ["undecided"])
    images, right = np.full(400, 100), np.full(400, 30)
    plain, better = (replace(one, answers=(images, right + more)) for one, more in ((plain, 0), (better, 1)))
    (cell,) = by_label(comparison(plain, better).gains())["ETA + ASR"]
    assert (cell.text, cell.marks) == ("+1.0 [+1.0, +1.0]", [])


def test_gains_over_resets_at_each_interval():
    rare, often = ({"name": "periodic", "every": n, "title": name} for n, name in ((1000, "RDumb"), (27, "matched")))
    runs = [
        run
        for reset, at in ((rare, 10), (often, 12), ("asr", 13))
        for run in (entry("eta", at, reset=reset), entry("eta", at, reset=reset, seed=44))
    ]
    sheet = comparison(*runs).gains()
    assert [name.rpartition(", ")[2] for name in sheet.columns] == ["over RDumb", "over matched"]
    assert texts(sheet) == {"ETA + ASR": ["+3.0", "+1.0"]}


def test_resets_are_told_where_there_are_any():
    sheet = comparison(entry("eta", 10), entry("eta", 10, reset="periodic", resets=7)).resets()
    assert texts(sheet) == {
        "ETA + RDumb": ["ccc-mini level=hard", "7.0", "14.3", "75.0", "40.0", "45.0", "-11.6", "4.3", "214.0"]
    }


def test_visits_get_columns_and_many_are_thinned():
    run = entry("eta", 30, stream="in-c-recurring-mini", visits=[0.25, 0.35])
    (sheet,) = comparison(run).visits()
    assert sheet.columns == ("visit 1", "visit 2", "mean", "knowledge recovery")
    assert texts(sheet)["ETA"] == ["25.0", "35.0", "30.0 ± 5.0", "+0.00"]
    many = entry("eta", 30, stream="cifar10-c", visits=np.linspace(0, 0.999, 1000).tolist())
    (sheet,) = comparison(many).visits()
    assert len(sheet.columns) == 22
    assert (sheet.columns[0], sheet.columns[19]) == ("visit 1", "visit 1000")


# Beside the paper

RESNET = "torchvision.models:resnet50"


def test_a_published_run_is_compared_with_its_own_stream():
    runs = [
        entry("roid", 20.0, reset="asr", stream="ccc:level=hard,speed=2000", seed=seed, model=RESNET, seen=n, total=n)
        for seed, n in ((43, 117_188), (45, 117_188), (44, 3_000))
    ]
    (row,) = beside.reproduced(comparison(*runs)).rows
    assert row.label == "ROID + ASR"
    measured, published, difference = row.cells
    assert published.value == pytest.approx((21.22 + 21.36) / 2)  # seed 44 did not see the whole stream
    assert (measured.value, measured.count) == (20.0, 2)
    assert difference.value == pytest.approx(20 - published.value)


@pytest.mark.parametrize(
    ("stream", "model", "batches", "expected"),
    [
        ("ccc:level=easy,speed=1000", RESNET, 117_188, 33.89),
        ("ccc-shards:path=x,level=hard,speed=5000,interleave=4", "resnet50", 117_188, 1.33),
        ("ccc:level=hard", "vit_b_16", 117_188, 14.40),
        ("cin-c:order_number=9", "resnet50", 11_730, 18.01),
        ("cin-c-noniid", "resnet50", 11_730, 18.01),
        ("in-c-recurring", "resnet50", 6_320, 3.08),
        ("in-d109-recurring:root=x", "resnet50", 24_400, 32.52),
    ],
)
def test_where_the_source_model_was_published(stream, model, batches, expected):
    experiment = Experiment(stream, "source", model=model, seed=43)
    assert beside.counterpart(experiment, batches).value == expected
    assert beside.counterpart(experiment, batches // 2) is None


def test_random_durations_and_dynamic_change_have_their_tables():
    eta = {"method": "eta", "reset": "asr", "model": "resnet50"}
    assert beside.counterpart(Experiment("ccc:level=easy,speed=random", seed=43, **eta), 117_188).value == 51.15
    assert beside.counterpart(Experiment("cdc:delta=10", **eta), 6_320).value == 36.85


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "bundled-resnet"},
        {"stream": "ccc-mini:level=hard"},
        {"stream": "ccc:level=hard,crop=false"},
        {"stream": "ccc:level=hard,speed=123"},
        {"stream": "ccc:level=33"},
        {"seed": 1},
        {"steps": 1000},
        {"batch": 32},
        {"method": "batchnorm"},
        {"reset": "confidence"},
    ],
)
def test_what_was_not_published_has_no_counterpart(fields):
    published = {"stream": "ccc:level=hard", "method": "eta", "model": "resnet50", "seed": 43}
    assert beside.counterpart(Experiment(**published), 117_188) is not None
    assert beside.counterpart(Experiment(**{**published, **fields}), 117_188) is None


def test_small_benchmarks_stand_beside_the_paper_without_a_difference():
    runs = [
        *seeds("eta", 30, 40, steps=300, batch=32),
        entry("tent", 3, steps=300, batch=32),
    ]
    sheet = beside.for_orientation(comparison(*runs))
    assert texts(sheet) == {"ETA": ["35.00", "0.32"]}
    assert "no reproduction" in sheet.notes[0]
    assert not any("difference" in name for name in sheet.columns)
    assert not beside.reproduced(comparison(*runs)).rows


def test_the_small_streams_and_ours_are_registered_under_the_names_of_their_protocols():
    known = set(streams.registry.names())
    assert {*protocols.PROTOCOLS, *beside.STREAMS} <= known
    for name in ("ccc-mini", "cin-c-mini", "in-c-recurring-mini", "cdc-mini"):
        assert name in known
        assert beside.orientation(Experiment(name, "roid", reset="asr")) is not None


@pytest.mark.parametrize("stream", ["in-d109-recurring-mini:visits=1", "drift"])
def test_a_run_has_the_same_accuracy_resets_and_quarters_in_report_and_analyse(tmp_path, stream):
    experiment = Experiment(stream, "eta", reset="periodic:every=3", batch=64, steps=17)
    run = bench.run(experiment, tmp_path / experiment.key)
    (entry,), run = read([tmp_path]), bench.load(run.folder)
    (score,) = scores.scores([run])
    assert score.mean == study.accuracy(run) == entry.accuracy()
    assert (entry.accuracy() == pytest.approx(100 * run.accuracy)) == (stream == "drift")  # by domain: two in part
    shown = history_of(run, "eta", "ETA")
    assert shown.overall == run.accuracy
    assert (
        len(run.resets)
        == study.reset_count(run)
        == entry.summary["resets"]["count"]
        == len(shown.resets)
        == run.batches // 3
    )
    last = headline.headline_rows(ReportData("", [shown], "", ()))[0].classes_in_use
    assert last == metrics.effective_classes(collapse.use(run.steps["predicted"]).last_quarter)


# Formats

SHEET = Sheet(
    "demo",
    "A & B",
    "who",
    ("x_1", "y"),
    (
        Row("a|b", (number(1.25, 2, std=0.5, count=3, collapsed=True), Cell("fog", "fog")), "a"),
        Row("a+", (number(9.0, best=True, partial=True), Cell()), "a"),
        Row("c", (number(None), Cell()), "c"),
    ),
    ("50 % of it",),
)


def test_markdown_marks_what_cannot_be_grey():
    written = formats.render([SHEET], "markdown")
    assert "| a\\|b | 1.25 ± 0.5† | fog |" in written
    assert "| a+ | **9.0…** | - |" in written
    assert "†: below the source model" in written


def test_latex_is_grey_and_escaped():
    written = formats.render([SHEET], "latex")
    assert r"\textcolor{gray}{1.25 $\pm$ 0.5}" in written
    assert r"\caption{A \& B}" in written
    assert r"x\_1" in written
    assert r"50 \% of it" in written
    assert r"\textbf{9.0\dots{}}" in written
    for command_ in ("toprule", "bottomrule", "midrule"):
        assert f"\\{command_}" in written
    assert re.findall(r"\\begin{(\w+)}", written) == re.findall(r"\\end{(\w+)}", written)[::-1]
    assert {line.count("&") - line.count(r"\&") for line in written.splitlines() if line.endswith(r"\\")} == {2}


def test_csv_has_one_column_for_each_kind_of_value():
    rows = list(csv.reader(io.StringIO(formats.render([SHEET], "csv"))))
    assert rows[0] == ["who", "x_1", "x_1 std", "x_1 n", "x_1 mark", "y"]
    assert rows[1] == ["a|b", "1.25", "0.5", "3", "collapsed", "fog"]
    assert rows[2] == ["a+", "9", "", "", "best partial", ""]


def test_several_tables_in_one_csv_are_told_apart():
    written = formats.render([SHEET, SHEET], "csv")
    assert written.count("# A & B\n") == 2
    assert "\n\n# A & B" in written


def test_html_is_escaped_and_grey_cells_say_why():
    written = formats.html(SHEET)
    assert 'class="below" title="below the source model on the same stream"' in written
    assert "x_1" in written
    assert "A &amp; B" in written


def test_a_narrow_terminal_gets_the_columns_in_blocks():
    from rich.console import Console

    sheet = Sheet("k", "t", "who", tuple(f"column{at}" for at in range(12)), (Row("me", (number(50.0),) * 12),))
    console = Console(file=io.StringIO(), width=60)
    formats.show([sheet], console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("who") > 1
    assert re.findall(r"column\d+", text) == [f"column{at}" for at in range(12)]
    assert text.count("50.0") == 12


def test_long_texts_are_broken_between_words_and_lose_nothing():
    from rich.console import Console

    words = " ".join(f"word{at}" for at in range(30))
    sheet = Sheet("k", "t", "who", ("text", "value"), (Row("me", (Cell(words, words), number(1.0))),))
    console = Console(file=io.StringIO(), width=50)
    formats.show([sheet], console)
    assert max(map(len, console.file.getvalue().splitlines())) <= 50
    assert re.findall(r"word\d+", console.file.getvalue()) == words.split()


def test_a_coloured_terminal_greys_instead_of_marking():
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80, no_color=False)
    formats.show([SHEET], console)
    assert re.search(r"\x1b\[90m *1.25 ± 0.5\x1b", console.file.getvalue())
    assert "†" not in console.file.getvalue()


def test_a_row_must_fill_its_columns():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Sheet("k", "t", "c", ("a", "b"), (Row("r", (Cell(),)),))


# Real runs

GRID = {
    "stream": "drift:images_per_cell=16",
    "steps": 8,
    "batch": 8,
    "seed": [43, 44],
    "grids": [{"method": "source"}, {"method": "tent", "reset": ["never", "periodic:every=3", "asr"]}],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Eight finished runs on one stream, one run that stopped half-way, one on a stream with visits."""
    root = tmp_path_factory.mktemp("runs")
    for experiment in bench.experiments(GRID):
        bench.run(experiment, root / experiment.key)
    half = Experiment("drift:images_per_cell=16", "eta", steps=8, batch=8, seed=43)
    steps = iter(range(8))
    bench.run(half, root / half.key, should_stop=lambda: next(steps) == 3)
    again = Experiment("recurring:visits=2,images=8", "tent", batch=8, seed=43)
    bench.run(again, root / again.key)
    return root


def report(*arguments: object) -> None:
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    command.run(parser.parse_args([str(argument) for argument in arguments]))


def test_the_command_tells_everything_and_writes_the_page(runs, capsys):
    report(runs)
    said = capsys.readouterr()
    for part in ("Accuracy, %", "Gain, points", "Resets", "Accuracy by visit", "Tent + RDumb (every 3)", "50% seen"):
        assert part in said.out
    assert f"wrote {runs / 'report.html'}" in said.err


def test_the_numbers_are_those_of_the_runs(runs, capsys):
    report(runs, "--no-html", "--format", "json", "--table", "accuracy")
    (table,) = json.loads(capsys.readouterr().out)
    shown = {row["contestant"]: row["cells"][0] for row in table["rows"]}
    of_tent = [
        100 * run.accuracy
        for run in bench.find(runs)
        if run.experiment.label == "Tent" and run.experiment.stream.name == "drift"
    ]
    assert shown["Tent"]["value"] == pytest.approx(np.mean(of_tent))
    assert shown["Tent"]["std"] == pytest.approx(np.std(of_tent))
    assert shown["Tent"]["n"] == 2


def test_one_table_as_clean_csv(runs, capsys, tmp_path):
    report(runs, "--no-html", "--format", "csv", "--table", "resets", "--out", tmp_path / "resets.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "resets.csv").read_text())))
    assert {"Tent + RDumb (every 3)"} <= {row["contestant"] for row in rows}
    assert capsys.readouterr().out == ""


def test_partial_results_count_when_asked(runs, capsys):
    report(runs, "--no-html", "--partial", "--format", "json", "--table", "accuracy")
    (table,) = json.loads(capsys.readouterr().out)
    eta = next(row for row in table["rows"] if row["contestant"] == "ETA")
    assert eta["cells"][0]["marks"] == ["partial"]
    assert eta["cells"][0]["value"] > 0


def test_the_page_is_whole_small_and_draws_every_run(runs):
    arrangement = Arrangement(read([runs]))
    text = runs_page.render("Runs", arrangement, Comparison(arrangement).sheets())
    page = Outline(text)
    assert page.count("details") == 3  # two seeds of drift, one of recurring
    assert sum("line" in (found.get("class") or "") and "data-track" in found for _, found in page.tags) == 10
    assert len(text) < 200_000
    assert "ETA 4 of 8" in text
    assert "http" not in text.replace("http://www.w3.org", "")


def test_a_long_set_is_thinned(runs):
    arrangement = Arrangement(read([runs]))
    part = runs_page._parts(arrangement)[0]
    long = runs_page.page_content(arrangement, part)
    histories = [
        runs_page._missing(history.key, history.label) if not history.batches else _stretched(history, 20_000)
        for history in long.histories
    ]
    plots: dict = {}
    figure = runs_page.curves.accuracy(
        runs_page.ReportData("long", histories, "", ["a"] * 1000), plots, "accuracy-long", points=runs_page.FEWEST
    )
    assert len(plots["accuracy-long"]["x"]) == runs_page.FEWEST
    assert len(figure) < 20_000  # although there is a reset after every third of 20,000 batches


def _stretched(history, times: int):
    import dataclasses

    fields = {
        name: np.tile(getattr(history, name), times)
        for name in ("correct", "count", "reset_fraction", "concentration", "threshold", "seconds")
    }
    empty = np.zeros((history.batches * times, 0), np.int64)
    return dataclasses.replace(
        history,
        total=history.batches * times,
        predicted=empty,
        labels=empty,
        domains=list(history.domains) * times,
        **fields,
    )


def test_the_same_run_in_two_places_counts_once(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "copy")
    assert len(read([runs, tmp_path / "copy"])) == len(read([runs])) == 10


def test_a_run_that_has_only_begun_is_told_about(runs, capsys, tmp_path):
    for name in ("drift-images_per_cell=16/source", "drift-images_per_cell=16/tent"):
        shutil.copytree(runs / name, tmp_path / name)
    begun = tmp_path / "begun"
    begun.mkdir()
    experiment = Experiment("drift:images_per_cell=16", "roid", steps=8, batch=8, seed=43)
    (begun / "experiment.json").write_text(json.dumps(experiment.as_plain()))
    report(tmp_path)
    assert "0% seen" in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_may_go_on_meanwhile(tmp_path):
    """Segments become final files and vanish while they are being read."""
    grid = {"stream": "clean", "steps": 6, "batch": 4, "seed": list(range(12)), "method": "source"}
    (tmp_path / "runs").mkdir()

    def sweep() -> None:
        for experiment in bench.experiments(grid):
            bench.run(experiment, tmp_path / "runs" / experiment.key, snapshot_every=1)

    worker = threading.Thread(target=sweep)
    worker.start()
    counts = []
    while worker.is_alive():
        if any((tmp_path / "runs").rglob("experiment.json")):
            counts.append(len(read([tmp_path / "runs"])))
    worker.join()
    assert counts == sorted(counts)
    assert len(counts) > 3
    assert all(entry.complete for entry in read([tmp_path / "runs"]))


def test_a_file_that_is_just_being_replaced_is_waited_for(runs, tmp_path):
    half = next(run.folder for run in bench.find(runs) if not run.complete)
    shutil.copytree(half, tmp_path / "half")
    (segment,) = (tmp_path / "half" / "segments").iterdir()
    aside = segment.rename(tmp_path / "aside")
    segment.symlink_to(tmp_path / "there soon")
    with pytest.raises(FolderError, match="is damaged"):
        read([tmp_path])
    later = threading.Timer(0.03, lambda: aside.rename(tmp_path / "there soon"))
    later.start()
    assert [entry.batches for entry in read([tmp_path])] == [4]
    later.join()


def test_folders_without_runs_are_refused(tmp_path):
    with pytest.raises(FolderError, match="there are no runs below"):
        report(tmp_path)
    with pytest.raises(FolderError, match="is not a folder"):
        report(tmp_path / "nowhere")


def test_a_table_with_nothing_to_say_is_refused(runs):
    with pytest.raises(ValueError, match="nothing for the table published"):
        report(runs, "--no-html", "--table", "published")
