"""Analyses over visits and streams: what they compute, accept, say and write."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tidefast.bench import Experiment, Run, find, load, metrics
from tidefast.bench.ledger import VARIANTS, Ledger, LedgerRow
from tidefast.bench.runner import run as run_experiment
from tidefast.core.specification import Specification
from tidefast.paper import domain_order
from tidefast.paper.analyses import registry
from tidefast.paper.naming import with_names
from tidefast.paper.scale import FullScale, MiniScale

OURS = ("groups", "imbalance", "measures", "proximity", "recovery", "schedules")
Batch = tuple[str, int, int]
"""Domain, visit, and how many of ten images are correct."""
Write = Callable[..., Run]
LONG = 10
"""So many times over, two visits have enough batches for an interval."""


def experiment(
    stream: str | Specification = "in-c-recurring-mini", reset: str = "never", **fields: object
) -> Experiment:
    return Experiment(stream, Specification("eta", title="ETA"), reset=reset, **fields)


def visits(*visits: Sequence[int]) -> list[Batch]:
    """Correct of ten images in fog and in snow, visit after visit."""
    return [(name, at, n) for at, pair in enumerate(visits) for name, n in zip(("fog", "snow"), pair, strict=True)]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a finished run with the accuracies that a test wants."""

    def written(what: Experiment, batches: Sequence[Batch], labels: Sequence[int] = (5, 5, 0)) -> Run:
        folder = tmp_path / what.key
        folder.mkdir(parents=True)
        (folder / "experiment.json").write_text(json.dumps(what.as_plain()))
        (folder / "environment.json").write_text(json.dumps({"batches": len(batches)}))
        ledger = Ledger(folder)
        for at, (domain, visit, correct) in enumerate(batches):
            span = {"domain": domain, "visit": visit, "images": 10, "correct": correct}
            measured = {**dict.fromkeys(("concentration", *VARIANTS, "threshold"), -1.0), "momentum": 0.9}
            measured |= {"inconsistency": 0.1, "penalty": 0.1}
            counts = list(labels)
            ledger.append(
                LedgerRow(at + 1, 10, correct, 10, 0.1, measured, 0.0, 0, None, counts, counts, {}, [span], 0.01)
            )
        ledger.flush()
        ledger.finish()
        (folder / "result.json").write_text(json.dumps(metrics.summary(load(folder))))
        ledger.clear()
        return load(folder)

    return written


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Three visits to four corruptions of 16 bundled images, one batch each."""
    folder = tmp_path_factory.mktemp("runs")
    stream = Specification("in-c-recurring-mini", {"images": 16, "visits": 3}, "IN-C")
    for reset in ("asr", "asr-no-recovery"):
        one = experiment(stream, reset, batch=16)
        run_experiment(one, folder / one.key)
    return find(folder)


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("setting", [MiniScale(), FullScale()], ids=["mini", "full"])
def test_each_asks_for_distinct_runs_with_resets_and_without(name: str, setting: MiniScale | FullScale):
    wanted = registry.get(name)().experiments(setting)
    assert len({one.key for one in wanted}) == len(wanted)
    assert {one.method.title for one in wanted} - {"Source"} == {"ETA", "ROID"}
    assert {"never", "asr"} <= {one.reset.name for one in wanted}


@pytest.mark.parametrize("name", ["resets", "stability", "collapse", "groups", "schedules", "imbalance"])
def test_wherever_rdumb_is_compared_it_also_resets_as_often_as_asr(name: str):
    everyone = registry.get(name)().experiments(MiniScale())
    by_interval = {
        title: {(one.stream.spelled, one.method.spelled) for one in everyone if one.reset.title == title}
        for title in ("RDumb", "RDumb (matched)")
    }
    assert by_interval["RDumb"] == by_interval["RDumb (matched)"]
    assert {one.reset.options["every"] for one in everyone if one.reset.name == "periodic"} == {200, 27}
    published = registry.get(name)().experiments(FullScale())  # where ASR's own interval is not known beforehand
    assert {one.reset.options["every"] for one in published if one.reset.name == "periodic"} == {1000}


COMPARING = (
    *("batch-size", "false-positives", "groups", "imbalance", "measures", "proximity", "recovery"),
    *("resets", "schedules", "sensitivity", "stability", "variance"),
)
"""Analyses whose figures are of accuracies."""


@pytest.mark.parametrize("name", COMPARING)
def test_wherever_accuracies_are_drawn_the_source_model_sees_the_same_streams(name: str):
    everyone = registry.get(name)().experiments(MiniScale())
    seen: dict[bool, set[tuple[str, int]]] = {True: set(), False: set()}
    for one in everyone:
        seen[one.method.name == "source"].add((one.stream.spelled, one.seed))
    assert seen[True] == seen[False]


def test_bars_have_the_line_of_the_source_and_say_how_sure_a_difference_is(write: Write):
    source = write(Experiment("drift", Specification("source", title="Source")), 40 * [("fog", 0, 3)])
    noisy = 20 * [("fog", 0, 8), ("fog", 0, 7)]
    runs = [
        write(experiment("drift", reset), batches)
        for reset, batches in (("never", 40 * [("fog", 0, 6)]), ("asr", noisy[:20] + 20 * [("fog", 0, 5)]))
    ]
    finding = registry.get("measures")().evaluate([source, *runs])
    assert [(row.label, row.cells[0].text) for row in finding.sheets[0].rows] == [
        *[("Source", "30.0"), ("ETA", "60.0"), ("ETA + ASR", "62.5")],
    ]
    (axes,) = finding.draw().axes
    assert [list(line.get_ydata()) for line in axes.lines if line.get_label() == "source model"] == [[30.0, 30.0]]
    spans = [path.vertices[:, 1] for bars in axes.collections for path in bars.get_paths()]
    assert any(low == pytest.approx(50.0) and high == pytest.approx(75.0) for low, high in spans)


def test_no_panel_is_cut_where_panels_share_their_axis(write: Write):
    stream = {"name": "cin-c-noniid-mini", "delta": 0.1}
    runs = [
        write(Experiment(stream, Specification(name, title=name.upper())), 4 * [("fog", 0, correct)])
        for name, correct in (("source", 1), ("eta", 3), ("roid", 9))  # the second panel is three times as high
    ]
    for axes in registry.get("imbalance")().evaluate(runs).draw().axes:
        low, high = axes.get_ylim()
        assert low == 0
        assert high > 90


def test_recovery_of_real_runs_is_that_of_their_summaries(real: list[Run], tmp_path: Path):
    recovery = registry.get("recovery")()
    assert all(map(recovery.accepts, real))
    written = recovery.evaluate(real).write(tmp_path, "recovery")
    assert {path.suffix for path in written} == {".csv", ".md", ".pdf", ".svg", ".png"}
    rows = read(tmp_path / "recovery.csv")
    for run in real:
        assert run.result is not None
        own = [row for row in rows if row["contestant"] == run.experiment.label]
        assert [row["visit"] for row in own] == ["1", "2", "3"]
        assert np.allclose([float(row["accuracy"]) for row in own], 100 * np.array(run.result["visits"]))
        assert np.allclose([float(row["recovery"]) for row in own], 100 * np.array(run.result["knowledge_recovery"]))


def test_recovery_by_hand(write: Write):
    with_, without = experiment(reset="asr"), experiment(reset="asr-no-recovery")
    finding = registry.get("recovery")().evaluate(
        [write(without, visits((5, 5), (4, 5), (2, 3))), write(with_, visits((5, 5), (6, 5), (8, 7)))]
    )
    accuracy, recovery = ({row.label.split(",")[0]: row for row in sheet.rows} for sheet in finding.sheets)
    assert finding.sheets[0].columns == ("visit 1", "visit 3", "mean")
    assert [cell.text for cell in accuracy["ETA + ASR"].cells] == ["50.0", "75.0", "60.0"]
    assert [cell.text for cell in recovery["ETA + ASR"].cells] == ["+0.00", "+20.00", "+8.33"]
    assert [cell.text for cell in recovery["ETA + ASR (no recovery)"].cells] == ["+0.00", "-25.00", "-10.00"]
    assert (
        "60.0 with recovery and 40.0 without in the mean of the visits, +20.0 without an interval, undecided"
        in (finding.remarks[0])
    )
    assert "75.0 and 25.0 at the last" in finding.remarks[0]
    assert "both hold here" in finding.remarks[1]
    assert "A visit has 20 images" in finding.remarks[2]


def test_remarks_on_recovery_follow_the_data(write: Write):
    finding = registry.get("recovery")().evaluate(
        [
            write(experiment(reset="asr-no-recovery"), LONG * visits((5, 5), (6, 6))),
            write(experiment(reset="asr"), LONG * visits((5, 5), (4, 4))),
        ]
    )
    assert "-10.0 [-10.0, -10.0];" in finding.remarks[0]
    assert "neither holds here" in finding.remarks[1]


def test_a_large_set_is_cut_to_where_the_question_is_asked(write: Write):
    runs = [
        write(experiment(reset=reset, seed=seed), visits((5, 5), (6, 6)))
        for seed, reset in ((0, "asr"), (0, "asr-no-recovery"), (1, "asr"))
    ]
    labels = [row.label for row in registry.get("recovery")().evaluate(runs).sheets[0].rows]
    assert labels == [f"ETA + ASR{kind}, in-c-recurring-mini, seed 0" for kind in (" (no recovery)", "")]


@pytest.mark.parametrize(
    ("name", "stream", "reset", "accepted"),
    [
        ("recovery", "in-c-recurring-mini", "asr", True),
        ("recovery", "in-c-recurring-mini", "asr:accumulation=none", True),
        ("recovery", "in-c-recurring-mini", "asr-full", False),
        ("proximity", "in-c-recurring-mini", "asr:when=adaptive:delay=0.5", True),
        ("proximity", "in-c-recurring-mini", "asr-interval", False),
        ("proximity", "in-c-recurring-mini", "periodic", False),
        ("schedules", "cdc-mini", "periodic", True),
        ("schedules", "in-c-recurring-mini", "asr", False),
        ("measures", "drift", "asr-mean-of-softmax", True),
        ("measures", "drift", "periodic", False),
        ("imbalance", "cin-c-noniid-mini", "asr", True),
        ("imbalance", "cdc-mini:delta=1.0", "asr", False),
        ("groups", "cifar100-c-mini", "never", True),
        ("groups", "drift", "never", False),
    ],
)
def test_what_an_analysis_looks_at(write: Write, name: str, stream: str, reset: str, accepted: bool):
    run = write(experiment(stream, reset), visits((5, 5), (6, 6)))
    assert registry.get(name)().accepts(run) is accepted


@pytest.mark.parametrize("name", ["recovery", "proximity", "schedules"])
def test_a_single_visit_says_nothing_about_visits(write: Write, name: str):
    assert not registry.get(name)().accepts(write(experiment("cdc-mini", "asr"), visits((5, 5))))


def test_delays_are_in_the_table_and_judged(write: Write):
    made = {"never": (6, 6), "asr": (8, 8), "asr-delay-0.001": (9, 9), "asr-delay-0.01": (5, 5)}
    runs = [write(experiment(reset=reset), LONG * visits((5, 5), last)) for reset, last in made.items()]
    finding = registry.get("proximity")().evaluate(runs)
    assert [row.cells[0].text for row in finding.sheets[0].rows] == ["-", "0.001", "0.01", "0"]
    assert "delay 0.001 +5.0 [+5.0, +5.0]; delay 0.01 -15.0 [-15.0, -15.0]" in finding.remarks[0]
    assert "better in 1, worse, as in the paper, in 1, undecided in 0, of 2 delays" in finding.remarks[0]
    assert "With delay 0.01 over ETA" in finding.remarks[1]
    assert finding.remarks[1].endswith("-5.0 [-5.0, -5.0].")


def test_segments_of_a_schedule(write: Write, tmp_path: Path):
    order = [("fog", 0), ("fog", 0), ("snow", 0), ("snow", 1), ("fog", 1), ("snow", 1), ("fog", 1)]
    stream = Specification("cdc-mini", {"delta": 1.0}, "CDC")
    runs = [
        write(experiment(stream, reset), [(domain, visit, correct - 4 * visit) for domain, visit in order])
        for reset, correct in (("periodic", 8), ("asr", 9))
    ]
    found = domain_order.segments(runs[0])
    assert [(one.domain, one.visit, one.batches) for one in found] == [
        *[("fog", 0, 2), ("snow", 0, 1), ("snow", 1, 1)],
        *[("fog", 1, 1), ("snow", 1, 1), ("fog", 1, 1)],
    ]
    finding = registry.get("schedules")().evaluate(runs)
    assert [cell.text for cell in finding.sheets[1].rows[0].cells] == ["6", "3.0", "1.5", "1.0"]
    assert "ETA + ASR, CDC, from the first visit to the last: 90.0 to 50.0, falls (two standard errors are 19.7)." in (
        finding.remarks
    )
    assert any("over RDumb" in said and "+10.0 without an interval, undecided" in said for said in finding.remarks)
    finding.write(tmp_path / "out", "schedules")
    assert sum(int(row["batches"]) for row in read(tmp_path / "out" / "schedules-segments.csv")) == len(order)


def test_repetitions_are_averaged_and_measures_compared(write: Write, tmp_path: Path):
    made = [("asr", 0, 6), ("asr", 1, 8), ("asr-mean-of-softmax", 0, 5), ("never", 0, 6)]
    runs = [write(experiment("drift", reset, seed=seed), [("fog", 0, n)]) for reset, seed, n in made]
    finding = registry.get("measures")().evaluate(runs)
    assert {row.label: row.cells[0].text for row in finding.sheets[0].rows} == {
        "ETA": "60.0",
        "ETA + ASR": "70.0 ± 10.0",
        "ETA + ASR (mean of softmax)": "50.0",
    }
    assert "over the mean of softmaxes +10.0 without an interval, undecided" in finding.remarks[0]  # on seed 0
    assert "over no reset -10.0 without an interval, undecided" in finding.remarks[0]
    assert "better in 0, worse in 0, undecided in 1 of 1 cases" in finding.remarks[1]
    finding.write(tmp_path / "out", "measures")
    assert len(read(tmp_path / "out" / "measures.csv")) == len(made)


def test_imbalance_counts_labels_and_who_leads(write: Write, tmp_path: Path):
    made = ((0.1, [5, 5, 0, 0], (4, 5)), (10.0, [3, 3, 2, 2], (9, 8)))
    runs = [
        write(experiment({"name": "cin-c-noniid-mini", "delta": delta}, reset), 40 * [("fog", 0, correct)], labels)
        for delta, labels, pair in made
        for reset, correct in zip(("periodic", "asr"), pair, strict=True)
    ]
    finding = registry.get("imbalance")().evaluate(runs)
    rows = {row.label: [cell.text for cell in row.cells] for row in finding.sheets[0].rows}
    assert finding.sheets[0].columns == ("delta 0.1", "delta 10")
    assert rows["ETA + ASR"] == ["50.0", "80.0"]
    assert rows["distinct labels in a batch"] == ["2.0", "4.0"]
    assert any(
        "ETA + ASR against ETA + RDumb is above all of them in 1, below one in 1, undecided in 0 of 2 deltas" in said
        for said in finding.remarks
    )
    assert "From delta 10 to 0.1 ETA + ASR loses 30.0 points." in finding.remarks
    finding.write(tmp_path / "out", "imbalance")
    assert {row["distinct_labels"] for row in read(tmp_path / "out" / "imbalance.csv")} == {"2.0", "4.0"}


def test_imbalance_says_who_is_below_the_source_and_draws_its_line(write: Write):
    stream = {"name": "cin-c-noniid-mini", "delta": 0.1}
    source = write(Experiment(stream, Specification("source", title="Source")), [("fog", 0, 6)])
    learning = [
        write(experiment(stream, reset), [("fog", 0, correct)]) for reset, correct in (("never", 4), ("asr", 7))
    ]
    finding = registry.get("imbalance")().evaluate([source, *learning])
    assert "The source model has 60.0 %: 1 of 2 results are below it, so collapsed." in finding.remarks
    (axes,) = finding.draw().axes
    line = next(line for line in axes.lines if line.get_label() == "source model")
    assert list(line.get_ydata()) == [60.0]


def test_groups_of_both_sets_from_easy_to_hard(write: Write, tmp_path: Path):
    runs = [
        write(
            experiment(Specification(f"cifar{classes}-c-mini", {"group": group}, group.title()), reset),
            LONG * visits((correct, correct), (correct, correct)),
        )
        for classes in (10, 100)
        for group in ("hard", "medium", "easy")
        for reset, correct in (("never", 5), ("asr", 7 if group == "hard" else 4))
    ]
    finding = registry.get("groups")().evaluate(runs)
    assert [sheet.columns for sheet in finding.sheets] == [("Easy", "Medium", "Hard")] * 2
    assert (
        "CIFAR-10-C: ASR against the other forms of ETA is above all of them in 1, below one in 2, undecided in 0 of 3 "
        "groups; against the best of them: Easy -10.0 [-10.0, -10.0]; Medium -10.0 [-10.0, -10.0]; Hard +20.0 "
        "[+20.0, +20.0]."
    ) in finding.remarks
    assert not finding.sheets[0].notes
    assert "CIFAR-10's in both cases" in finding.sheets[1].notes[0]
    assert {path.name for path in finding.write(tmp_path / "out", "groups")} >= {
        "groups-cifar-10-c.csv",
        "groups-cifar-100-c.csv",
    }


def test_runs_that_differ_have_names_that_differ(write: Write):
    every = [
        experiment(reset="periodic:every=200"),
        experiment(reset={"name": "periodic", "every": 200, "title": "RDumb"}, seed=1),
        experiment(reset={"name": "periodic", "every": 500, "title": "RDumb"}, seed=1),
        experiment(optimizer="adam:lr=0.1"),
        experiment(optimizer="adam:lr=0.2"),
        experiment(Specification("in-c-recurring-mini", {"images": 32}, "IN-C")),
        experiment(Specification("in-c-recurring-mini", {"images": 64}, "IN-C")),
    ]
    named_runs = with_names([write(one, visits((5, 5), (6, 6))) for one in every])
    assert len({one.title for one in named_runs}) == len(every)
