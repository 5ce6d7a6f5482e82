"""Analyses along the stream: resets, stability, collapse and dynamics, on hand-made runs and on real ones."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tidefast.bench import Experiment, metrics, run
from tidefast.bench.ledger import Ledger, LedgerRow
from tidefast.bench.results import EXPERIMENT, RESULT, Run, load
from tidefast.paper import domain_order, naming, reset_effects
from tidefast.paper.analyses import registry, stability
from tidefast.paper.analyses.collapse import Collapse
from tidefast.paper.analyses.dynamics import Dynamic
from tidefast.paper.analyses.resets import Resets
from tidefast.paper.analyses.stability import Stability
from tidefast.paper.figure import line_styles, marked
from tidefast.paper.scale import MiniScale

NAMES = ("calibration", "collapse", "dynamics", "resets", "stability")
RDUMB = {"name": "periodic", "every": 20}


def made(
    folder: Path,
    experiment: Experiment,
    share,
    *,
    resets=(),
    depth=1.0,
    concentration=None,
    domains=None,
    predicted=None,
) -> Run:
    """A finished run with ten images per batch and two classes, of which `share` are right."""
    folder.mkdir(parents=True)
    (folder / EXPERIMENT).write_text(json.dumps(experiment.as_plain()))
    ledger = Ledger(folder)
    for t, right in enumerate(share):
        correct = round(10 * right)
        span = {"domain": domains[t] if domains else "fog", "visit": 0, "images": 10, "correct": correct}
        ledger.append(
            LedgerRow(
                step=t + 1,
                images=10,
                correct=correct,
                selected=10,
                loss=None,
                measurements={} if concentration is None else {"concentration": float(concentration[t])},
                reset_fraction=depth if t in resets else 0.0,
                nonfinite=0,
                skipped=None,
                predicted=[5, 5] if predicted is None else [int(n) for n in predicted[t]],
                labels=[5, 5],
                reliability={},
                spans=[span],
                seconds=0.01,
            )
        )
    ledger.flush()
    ledger.finish()
    (folder / RESULT).write_text(json.dumps(metrics.summary(load(folder))))
    return load(folder)


def table(finding, at=0) -> dict[str, dict[str, str]]:
    sheet = finding.sheets[at]
    return {row.label: dict(zip(sheet.columns, (cell.text for cell in row.cells), strict=True)) for row in sheet.rows}


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as lines:
        return list(csv.DictReader(lines))


# names


def test_names_say_what_differs_and_nothing_else():
    hard = MiniScale().experiment(MiniScale().ccc("hard"), "ETA", "ASR")
    fast = MiniScale().experiment(MiniScale().ccc("hard", speed=320), "ETA", "ASR")
    small = MiniScale().experiment(MiniScale().ccc("hard", batch=4), "ETA", "ASR")
    assert naming.names([hard]) == ["ETA + ASR"]
    assert len(set(naming.names([hard, fast, small]))) == 3
    assert naming.names([hard, fast]) == ["ETA + ASR", "ETA + ASR, speed 320"]


def test_seeds_are_pooled_and_a_run_that_is_there_twice_counts_once(tmp_path):
    runs = [made(tmp_path / str(seed), Experiment("drift", "eta", seed=seed), [0.5] * 20) for seed in (1, 2)]
    assert {name: len(group) for name, group in naming.pooled([*runs, runs[0]]).items()} == {"ETA": 2}


def test_no_two_lines_look_alike():
    labels = ["ETA + ASR", "ROID + ASR", "ETA", "ETA + RDumb", "ETA + ASR (full)", "ETA + ASR (every 171)"]
    for looks in (line_styles(labels), marked(labels)):
        assert len({tuple(map(str, look.values())) for look in looks.values()}) == len(labels)


def test_whom_the_paper_is_about_has_the_same_colour_in_every_figure():
    whole, parts = line_styles(["ETA", "Easy", "ETA + ASR"]), marked(["RDumb", "ASR, alpha0 0.1", "no reset"])
    assert whole["ETA + ASR"]["color"] == parts["ASR, alpha0 0.1"]["color"]
    assert whole["ETA"]["color"] == parts["no reset"]["color"]
    assert whole["Easy"]["color"] not in {look["color"] for look in parts.values()}


def test_blocks_are_the_papers_where_the_stream_is_long():
    assert [metrics.block_length(n) for n in (117_188, 20_000, 19_999, 1000, 3)] == [1000, 1000, 999, 50, 1]


# resets


def dropping(folder: Path, reset, fall: float, back: int, **changes) -> Run:
    """100 batches, reset after every 20th: accuracy falls from 0.8 by `fall`, and is back after `back` batches."""
    share = [0.8 - fall * (t >= 20 and t % 20 < back) for t in range(100)]
    experiment = Experiment("drift", {"name": "eta", "title": "ETA"}, reset=reset, **changes)
    return made(folder, experiment, share, resets=range(19, 99, 20))


def test_the_cost_of_resets_is_that_of_the_metrics(tmp_path):
    finding = Resets().evaluate([dropping(tmp_path / "a", RDUMB, 0.4, 5)])
    row = table(finding)["ETA + RDumb (every 20)"]
    assert row["resets"] == "4"
    assert row["detrimental, %"] == "100"
    assert row["loss, points"] == "-20.00"  # five of ten batches are 0.4 lower
    assert row["recovery delay, batches"] == "6.0"
    assert finding.frames["resets"]["change"] == pytest.approx([-0.2] * 4)
    assert "100 % of 4 resets are detrimental and cost 20.0 points" in finding.remarks[0]
    assert row["of pseudo-resets, %"] == "0"  # eight batches later all is well again
    assert row["batches per reset"] == "25.0"


@pytest.mark.parametrize(("fall", "said"), [(0.1, "holds"), (0.6, "does not hold")])
def test_whether_the_papers_comparison_holds_follows_from_the_runs(tmp_path, fall, said):
    runs = [dropping(tmp_path / "a", RDUMB, 0.4, 5), dropping(tmp_path / "b", "asr", fall, 5)]
    verdict = next(remark for remark in Resets().evaluate(runs).remarks if "cost less" in remark)
    assert verdict.endswith(f"cost less {said} here.")


def test_what_cannot_be_compared_is_not(tmp_path):
    runs = [dropping(tmp_path / "a", RDUMB, 0.4, 5), dropping(tmp_path / "b", "asr", 0.0, 5)]
    remarks = " ".join(Resets().evaluate(runs).remarks)
    assert "none of 4 resets is detrimental" in remarks
    assert "cannot be made" in remarks
    assert "holds" not in remarks


def test_accuracy_around_a_reset_ends_at_its_neighbours():
    rows = reset_effects.aligned(np.arange(30.0), np.array([4, 24]))
    assert rows[0, : reset_effects.BEFORE].tolist()[-6:] == pytest.approx([math.nan, 0, 1, 2, 3, 4], nan_ok=True)
    assert rows[0, reset_effects.BEFORE :][:21].tolist() == pytest.approx([*range(5, 25), math.nan], nan_ok=True)
    assert rows[1, : reset_effects.BEFORE].tolist() == [*range(15, 25)]
    assert np.isfinite(rows[1, reset_effects.BEFORE :]).sum() == 5


def test_the_mean_around_resets_needs_half_of_them():
    rows = np.full((4, reset_effects.BEFORE + reset_effects.AFTER), np.nan)
    rows[:, :5] = [[0.1], [0.3], [0.3], [0.5]]
    rows[0, 5:10] = 0.9
    mean, error, count = reset_effects.mean_around(rows)
    assert mean[0] == pytest.approx(0.3)
    assert error[0] == pytest.approx(np.std([0.1, 0.3, 0.3, 0.5], ddof=1) / 2)
    assert math.isnan(mean[1])
    assert count[:3].tolist() == [4, 1, 0]


def test_what_chance_makes_is_what_resets_without_effect_show():
    batches, rng = 200_000, np.random.default_rng(0)
    shares = rng.binomial(16, 0.6, batches) / 16
    at = np.arange(19, batches - 1, 20)
    seen = np.abs(metrics.reset_effects(shares, at).change).mean()
    chance = reset_effects.by_chance(
        reset_effects.aligned(shares, at), reset_effects.aligned(np.full(batches, 16.0), at)
    )
    assert chance.mean() == pytest.approx(seen, rel=0.03)  # ten thousand resets: four standard errors


def test_a_run_without_resets_is_a_reference_only(tmp_path):
    never = made(tmp_path / "n", Experiment("drift", {"name": "eta", "title": "ETA"}), [0.5] * 100)
    assert not Resets().accepts(never)
    finding = Resets().evaluate([never, dropping(tmp_path / "a", RDUMB, 0.4, 5)])
    assert table(finding)["ETA"]["resets"] == "0"
    assert table(finding)["ETA"]["loss, points"] == "-"


# stability


def test_stability_is_the_mean_over_streams_in_blocks(tmp_path):
    runs = [
        made(tmp_path / level, Experiment(f"ccc-mini:level={level}", "eta"), [low] * 20 + [high] * 20)
        for level, low, high in (("easy", 0.9, 0.7), ("hard", 0.5, 0.1))
    ]
    finding = Stability().evaluate(runs)
    row = table(finding)["ETA"]
    assert (row["streams"], row["mean, %"], row["worst block, %"], row["std of blocks"]) == (
        "2",
        "55.0",
        "40.0",
        "15.00",
    )
    assert finding.frames["blocks"]["accuracy"] == pytest.approx([0.7] * 10 + [0.4] * 10)


def test_the_fine_scale_sees_what_blocks_do_not():
    saw = np.tile([0.2, 0.2, 0.2, 0.2, 0.2, 0.8, 0.8, 0.8, 0.8, 0.8], 20)
    flat = np.full(200, 0.5)
    one, other = (stability.AccuracyCurve(frozenset(), 10, np.full(20, 0.5), fine, 0.0) for fine in (saw, flat))
    assert one.fluctuation == pytest.approx(0.3)
    assert other.fluctuation == 0.0


@pytest.mark.parametrize(("asr", "said"), [(0.9, "+40.0 [+40.0, +40.0]"), (0.3, "-20.0 [-20.0, -20.0]")])
def test_stability_says_who_is_above(tmp_path, asr, said):
    title = {"name": "eta", "title": "ETA"}
    rdumb = Experiment("drift", title, reset={**RDUMB, "title": "RDumb"})
    runs = [
        made(tmp_path / "r", rdumb, [0.5] * 40),
        made(tmp_path / "a", Experiment("drift", title, reset="asr"), [asr] * 40),
    ]
    remark = Stability().evaluate(runs).remarks[0]
    assert said in remark
    assert f"above in {20 * (asr > 0.5)} of 20 blocks" in remark


# collapse


def test_collapse_counts_classes_in_use(tmp_path):
    spread, gone = [[5, 5]] * 20, [[10, 0]] * 20
    runs = [
        made(tmp_path / "a", Experiment("drift", "eta"), [0.5] * 40, predicted=spread + gone),
        made(tmp_path / "b", Experiment("drift", "eta", reset="asr"), [0.5] * 40, predicted=spread + spread),
    ]
    finding = Collapse().evaluate(runs)
    lost, kept = table(finding)["ETA"], table(finding)["ETA + ASR"]
    assert [lost[key] for key in ("first quarter", "last quarter", "never predicted, %")] == ["2.00", "1.00", "50"]
    assert [kept[key] for key in ("first quarter", "last quarter", "never predicted, %")] == ["2.00", "2.00", "0"]
    assert finding.remarks[0].startswith("ETA is biased")
    assert finding.remarks[1].startswith("ETA + ASR stays spread")
    rows = zip(*finding.frames["histogram"].values(), strict=True)
    counts = [count for name, _, label, count in rows if (name, label) == ("ETA", 1)]
    chosen, expected = metrics.prediction_histogram(runs[0].steps["predicted"], 2)
    assert counts == expected[:, chosen.tolist().index(1)].tolist() == [10] * 10 + [0] * 10


# dynamics


def stepping(size: float) -> tuple[list[str], np.ndarray]:
    """Four domains of 30 batches; concentration wavers by 0.01, and is higher by `size` in the second."""
    waver = 0.01 * np.resize([0, 0, 0, 0, 0, 1, 1, 1, 1, 1], 120)
    level = np.repeat([0.0, size, 0.0, 0.0], 30)
    return [name for name in ("fog", "snow", "frost", "blur") for _ in range(30)], waver + level


def test_abrupt_is_what_is_rare_within_domains():
    domains, concentration = stepping(0.5)
    found = domain_order.dynamics_of(domains, concentration, np.array([31, 64, 65, 100]))
    assert [(one.batch, one.kind, one.reset) for one in found.boundaries] == [
        (30, "rise", True),
        (60, "decline", True),
        (90, "", False),
    ]
    assert found.boundaries[0].change == pytest.approx(0.49)
    assert found.near_rate == pytest.approx(2 / 15)
    assert found.far_rate == pytest.approx(2 / 105)
    assert not domain_order.dynamics_of(*stepping(0.005), np.array([], int)).of("rise")


def test_the_usual_change_is_measured_within_domains_only():
    domains, concentration = stepping(100.0)
    assert domain_order.dynamics_of(domains, concentration, np.array([], int)).usual < 0.02


@pytest.mark.parametrize(("after", "said"), [(31, "holds"), (50, "does not hold")])
def test_dynamics_says_whether_rises_set_off_resets(tmp_path, after, said):
    domains, concentration = stepping(0.5)
    one = made(
        tmp_path / "a",
        Experiment("drift", "eta", reset="asr"),
        [0.5] * 120,
        domains=domains,
        concentration=concentration,
        resets=[after],
    )
    finding = Dynamic().evaluate([one])
    assert f"set off a reset {said} here" in " ".join(finding.remarks)
    boundary = table(finding, 1)["ETA + ASR: fog, snow"]
    assert boundary["abrupt"] == "rise"
    assert boundary[f"reset within {domain_order.NEAR}"] == ("yes" if after == 31 else "no")


def test_dynamics_wants_boundaries_with_something_between_them(tmp_path):
    def of(name: str, domains: list[str]) -> Run:
        return made(tmp_path / name, Experiment("drift", "eta"), [0.5] * 60, domains=domains, concentration=[0.0] * 60)

    assert Dynamic().accepts(of("two", ["fog"] * 30 + ["snow"] * 30))
    assert not Dynamic().accepts(of("one", ["fog"] * 60))
    assert not Dynamic().accepts(of("many", ["fog", "snow"] * 30))


# real runs


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> list[Run]:
    """Three contestants on two corruptions after the other."""
    place = {"stream": {"name": "cin-c-mini", "images": 16, "title": "CIN-C"}, "batch": 8}
    method = {"method": {"name": "eta", "title": "ETA"}, "optimizer": {"name": "adam", "lr": 1e-2}}
    folder = tmp_path_factory.mktemp("runs")
    policies = ("never", {"name": "periodic", "every": 15, "title": "RDumb"}, "asr")
    return [run(Experiment(**place, **method, reset=one), folder / str(at)) for at, one in enumerate(policies)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_same_runs_give_the_same_files_with_the_data_of_the_finding(real, tmp_path, name):
    finding = registry.get(name)().evaluate(real)
    first, second = finding.write(tmp_path / "a", name), registry.get(name)().evaluate(real).write(tmp_path / "b", name)
    assert {path.suffix for path in first} == {".csv", ".md", ".pdf", ".svg", ".png"}
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        assert one.stat().st_size > 40
        assert one.read_bytes() == other.read_bytes()
    for key, frame in finding.frames.items():
        rows = read(tmp_path / "a" / f"{name}-{key}.csv")
        assert [[*row.values()] for row in rows] == [[str(v) for v in row] for row in zip(*frame.values(), strict=True)]


def test_real_resets_have_the_numbers_of_the_results(real):
    rows = table(Resets().evaluate(real))
    for one in real[1:]:
        there = one.result["resets"]
        row = rows[one.experiment.label]
        assert row["resets"] == str(there["count"])
        if there["detrimental_mean"] is not None:
            assert row["loss, points"] == f"{100 * there['detrimental_mean']:.2f}"
