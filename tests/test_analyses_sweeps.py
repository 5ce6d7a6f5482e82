"""Analyses of runs that differ in one number, and of what ASR costs."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tidefast.bench import Experiment, metrics, run
from tidefast.bench.ledger import DIGESTS
from tidefast.bench.results import RESULT, Run, load
from tidefast.core.specification import Specification
from tidefast.paper import footprint, paired, parameter_curves
from tidefast.paper.analyses import registry
from tidefast.paper.analysis import Finding
from tidefast.paper.reproduction import quantity
from tidefast.paper.scale import MiniScale
from tidefast.paper.study import StudyError, accuracy, asr_of

STEPS = 60
PROBE = "asr:measure=probe:images=20,momentum=constant:value=1.0"
SMALL = {"model": "test_analyses_sweeps:small_network", "optimizer": "adam:lr=1e-2"}
RESETS = (
    *("never", "periodic:every=20", "asr", "asr:measure=spread:factor=4", "asr:measure=spread:factor=16"),
    *("asr:r0=0.25", "asr:r0=1", "asr-no-recovery", "asr-no-adjustment"),
    *(f"{PROBE},alpha0={alpha0}" for alpha0 in (0.2, 0.9999)),
)


def small_network() -> nn.Module:
    """A network of two adapting layers that takes a millisecond."""
    torch.manual_seed(0)
    first = (nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU())
    second = (nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval()


def made(folder: Path, **changes: object) -> Run:
    fields = {"stream": "drift", "method": "roid", "seed": 43, "steps": STEPS, "batch": 8, **SMALL, **changes}
    if "probe" in str(fields.get("reset")):
        fields["source"] = "bundled-train"
    experiment = Experiment(**fields)
    return run(experiment, folder / experiment.key, batches=folder / f"batches-{experiment.batch}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    found = [made(folder, reset=reset) for reset in RESETS]
    return [*found, *(made(folder, reset=reset, batch=4) for reset in ("never", "asr"))]


def evaluated(name: str, runs: list[Run]) -> Finding:
    analysis = registry.get(name)()
    return analysis.evaluate([one for one in runs if analysis.accepts(one)])


def by_reset(runs: list[Run], reset: str, batch: int = 8) -> Run:
    wanted = Experiment("drift", "roid", reset=reset).reset
    return next(one for one in runs if one.experiment.reset == wanted and one.experiment.batch == batch)


def altered(one: Run, folder: Path, **result: float) -> Run:
    """A copy of a run whose result says something else."""
    folder.mkdir(parents=True)
    for file in one.folder.iterdir():
        if file.is_file() and file.name != DIGESTS:  # which would say that the result is another
            (folder / file.name).write_bytes(file.read_bytes())
    found = json.loads((folder / RESULT).read_text())
    (folder / RESULT).write_text(json.dumps({**found, **result}))
    return load(folder)


def test_variance_puts_plain_asr_at_factor_one(runs):
    (sheet,) = evaluated("variance", runs).sheets
    assert [row.label for row in sheet.rows] == ["drift, 1", "drift, 4", "drift, 16"]
    base, most = accuracy(by_reset(runs, "asr")), accuracy(by_reset(runs, "asr:measure=spread:factor=16"))
    assert sheet.rows[0].cells[0].value == pytest.approx(base)
    assert sheet.rows[2].cells[1].value == pytest.approx(most - base)
    counts = [row.cells[2].value for row in sheet.rows]
    assert counts[0] == np.count_nonzero(np.nan_to_num(by_reset(runs, "asr").steps["reset_fraction"]))


def test_variance_says_whether_the_published_bound_holds(runs, tmp_path):
    chosen = [by_reset(runs, reset) for reset in ("asr", "asr:measure=spread:factor=4")]
    easy = [
        dataclasses.replace(one, experiment=dataclasses.replace(one.experiment, stream=stream))
        for one in chosen
        for stream in [MiniScale().ccc("easy").stream]
    ]
    near = altered(easy[1], tmp_path / "near", accuracy=easy[0].result["accuracy"] + 0.001)
    noisy = altered(by_reset(runs, "never"), tmp_path / "noisy", accuracy=easy[0].result["accuracy"] + 0.001)
    far = altered(easy[1], tmp_path / "far", accuracy=easy[0].result["accuracy"] - 0.2)
    said = [
        evaluated("variance", [easy[0], dataclasses.replace(other, experiment=easy[1].experiment)]).remarks[0]
        for other in (near, far, noisy)
    ]
    assert "+0.10 [" in said[0]
    assert said[0].endswith("0.3 points holds.")
    assert "-20.00 [" in said[1]
    assert said[1].endswith("0.3 points does not hold.")
    assert said[2].endswith("0.3 points is undecided.")  # as near, and the interval is wider than the bound


def test_false_positives_reads_thresholds_from_the_runs(runs):
    finding = evaluated("false-positives", runs)
    frame = finding.frames["runs"]
    assert frame["threshold"] == pytest.approx([-math.log(9.999), -math.log(2.0)], abs=1e-4)
    assert frame["resets"][0] > frame["resets"][1]
    labels = [row.label for row in finding.sheets[0].rows]
    assert labels[:2] == ["drift, no reset", "drift, ASR, its own threshold"]
    assert len(labels) == 4
    gain = accuracy(by_reset(runs, f"{PROBE},alpha0=0.2")) - accuracy(by_reset(runs, "never"))
    assert finding.sheets[0].rows[2].cells[1].value == pytest.approx(gain)


def test_false_positives_says_which_threshold_is_best(runs, tmp_path):
    high, low = (by_reset(runs, f"{PROBE},alpha0={alpha0}") for alpha0 in (0.2, 0.9999))
    better = altered(low, tmp_path / "better", accuracy=0.99, domain_mean=0.99)
    worse = altered(low, tmp_path / "worse", accuracy=0.0, domain_mean=0.0)
    assert any("more resets help" in said for said in evaluated("false-positives", [high, better]).remarks)
    assert any("do not help" in said for said in evaluated("false-positives", [high, worse]).remarks)


def test_batch_size_has_a_column_for_each_size_and_marks_shorter_streams(runs):
    (sheet,) = evaluated("batch-size", runs).sheets
    assert sheet.columns == ("8", "4")
    assert [row.label for row in sheet.rows] == ["ROID, drift", "ROID + ASR, drift"]
    assert sheet.rows[1].cells[1].value == pytest.approx(accuracy(by_reset(runs, "asr", 4)))
    assert "Fewer images were seen in batches of 4." in sheet.notes


def test_batch_size_averages_over_streams_where_all_have_a_size(runs):
    elsewhere = [
        dataclasses.replace(one, experiment=dataclasses.replace(one.experiment, stream=MiniScale().ccc("hard").stream))
        for one in runs
        if one.experiment.batch == 8
    ]
    four = [dataclasses.replace(runs[-1], experiment=dataclasses.replace(elsewhere[2].experiment, batch=4))]
    (sheet,) = evaluated("batch-size", [*runs, *elsewhere, *four]).sheets
    means = {row.label: row.cells for row in sheet.rows if row.label.endswith(", mean")}
    assert list(means) == ["ROID + ASR, mean"]
    assert means["ROID + ASR, mean"][0].value == pytest.approx(accuracy(by_reset(runs, "asr")))


def test_sensitivity_gives_the_largest_change_and_where_it_is(runs):
    finding = evaluated("sensitivity", runs)
    (sheet,) = finding.sheets
    assert [row.label for row in sheet.rows] == ["r0"]
    base = accuracy(by_reset(runs, "asr"))
    changes = {value: accuracy(by_reset(runs, f"asr:r0={value}")) - base for value in (0.25, 1)}
    at = max(changes, key=lambda value: abs(changes[value]))
    assert sheet.rows[0].cells[0].value == pytest.approx(changes[at])
    assert sheet.rows[0].cells[0].text.endswith(f"({at:g})")
    assert finding.frames["runs"]["value"] == [0.25, 0.5, 1.0]


def test_sensitivity_leaves_out_other_variants_of_asr(runs):
    accepts = registry.get("sensitivity")().accepts
    assert accepts(by_reset(runs, "asr:r0=1"))
    assert not accepts(by_reset(runs, "asr:measure=spread:factor=4"))
    assert not accepts(by_reset(runs, "periodic:every=20"))


def test_only_seeds_that_all_numbers_have_are_averaged(runs, tmp_path):
    base, other = by_reset(runs, "asr"), by_reset(runs, "asr:r0=1")
    more = altered(base, tmp_path / "seed44", accuracy=1.0)
    more = dataclasses.replace(more, experiment=dataclasses.replace(base.experiment, seed=44))
    (line,) = parameter_curves.lines(
        [base, more, other],
        lambda one: asr_of(one.experiment).r0,
        lambda one: {"reset": dataclasses.replace(one.reset, options={})},
    )
    assert line.accuracies == pytest.approx([accuracy(base), accuracy(other)])


def test_the_interval_of_a_change_is_that_of_blocks_of_the_same_images(runs):
    one, other = by_reset(runs, "asr"), by_reset(runs, "never")
    gain = (one.steps["correct"] - other.steps["correct"]).reshape(-1, metrics.INDEPENDENT).sum(1) / (
        8 * metrics.INDEPENDENT
    )
    found = paired.over([one], [other])
    assert found == metrics.paired_difference([[metrics.StreamPair(accuracy(one) - accuracy(other), 100 * gain)]])
    assert found.points == pytest.approx(100 * gain.mean())
    assert found.low < found.points < found.high
    assert paired.over([one], [by_reset(runs, "asr", 4)]).streams == 0  # other batches


@pytest.mark.parametrize("name", ["variance", "false-positives", "batch-size", "sensitivity"])
def test_runs_that_cannot_be_compared_are_refused_in_words(name, runs):
    with pytest.raises(StudyError, match="none of these runs can be compared: there must be some"):
        registry.get(name)().evaluate([by_reset(runs, "asr")])


def test_cost_takes_times_from_runs_of_other_networks(runs):
    finding = evaluated("cost", [one for one in runs if one.experiment.batch == 8])
    frame = finding.frames["contestants"]
    ratio = dict(zip(frame["contestant"], frame["time_ratio"], strict=True))
    plain, ours = by_reset(runs, "never"), by_reset(runs, "asr")
    assert ratio["ROID"] == 1.0
    assert ratio["ROID + ASR"] == pytest.approx(np.median(ours.seconds) / np.median(plain.seconds))
    assert "time / method without resets" in finding.sheets[0].columns
    assert "numbers held" not in finding.sheets[0].columns


def test_asr_holds_four_numbers_more_for_each_that_adapts_and_fewer_without_recovery(runs):
    chosen = [by_reset(runs, reset).experiment for reset in ("never", "asr", "asr-no-recovery")]
    plain, ours, less = footprint.weigh(chosen, batch=8, rounds=2)
    assert plain.trainable == ours.trainable == 2 * (8 + 16)
    assert ours.held - plain.held == 4 * ours.trainable
    assert less.held == plain.held
    assert plain.ratio == 1.0
    assert ours.ratio != plain.ratio
    assert quantity.held(by_reset(runs, "asr")) == ours.held  # the tables count as the analysis does


def test_concentration_correlates_batches_and_averages_of_batches(runs):
    one = by_reset(runs, "never")
    finding = evaluated("concentration", [one])
    value, share = one.steps["concentration"], one.steps["correct"] / one.steps["images"]
    slow, slow_share = (column.reshape(-1, 20).mean(1) for column in (value, share))
    cells = finding.sheets[0].rows[0].cells
    assert cells[0].value == pytest.approx(np.corrcoef(value, share)[0, 1])
    assert cells[-1].value == pytest.approx(np.corrcoef(slow, slow_share)[0, 1])
    assert finding.frames["averages"]["concentration"] == pytest.approx(slow.tolist())
    assert finding.sheets[0].rows[0].label == "ROID, drift"


def test_concentration_leaves_out_runs_that_recorded_another_measure(runs):
    accepts = registry.get("concentration")().accepts
    assert accepts(by_reset(runs, "asr"))
    assert not accepts(by_reset(runs, "asr:measure=spread:factor=4"))
    named = dataclasses.replace(by_reset(runs, "asr").experiment, reset=Specification("asr-mean-of-softmax"))
    assert not accepts(dataclasses.replace(by_reset(runs, "asr"), experiment=named))


@pytest.mark.parametrize("name", ["variance", "false-positives", "batch-size", "sensitivity", "cost", "concentration"])
def test_data_table_and_figure_are_written(name, runs, tmp_path):
    finding = evaluated(name, [one for one in runs if one.experiment.batch == 8 or name == "batch-size"])
    written = finding.write(tmp_path, name)
    assert {path.suffix for path in written} == {".csv", ".md", ".pdf", ".svg", ".png"}
    rows = list(csv.DictReader(written[0].read_text().splitlines()))
    assert len(rows) == len(next(iter(next(iter(finding.frames.values())).values())))
    text = (tmp_path / f"{name}.md").read_text()
    assert all(f"- {said}" in text for said in finding.remarks)
