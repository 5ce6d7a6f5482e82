"""What answers are worth as probabilities: kept batch by batch, summed up, shown."""

from __future__ import annotations

import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tidefast import bench, report
from tidefast.bench import calibration
from tidefast.bench.ledger import STEPS
from tidefast.paper.analyses.calibration import Calibration
from tidefast.report import arrangement, comparison, runs_page


def worth_of(logits: torch.Tensor, labels: torch.Tensor) -> calibration.Reliability:
    kept = calibration.kept_of(logits, labels)
    bins = (np.array(kept[f"bin_{name}"]) for name in ("images", "correct", "confidence"))
    return calibration.Reliability(*bins, kept["likelihood_loss"], kept["brier_score"])


def test_the_measures_are_those_of_plain_formulas():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 7, generator=generator).double()
    labels = torch.multinomial((0.5 * logits).softmax(1), 1, generator=generator).flatten()
    confidence, predicted = logits.softmax(1).max(1)
    right = (predicted == labels).double()
    error = 0.0
    for low in torch.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            error += inside.double().mean() * (right[inside].mean() - confidence[inside].mean()).abs()
    worth = worth_of(logits, labels)
    assert worth.error == pytest.approx(float(error))
    assert worth.error > 0.05  # else the comparison shows little
    loss = torch.nn.functional.cross_entropy(logits, labels)
    assert worth.negative_log_likelihood == pytest.approx(loss.item())
    truth = torch.nn.functional.one_hot(labels, 7)
    assert worth.brier == pytest.approx((logits.softmax(1) - truth).square().sum(1).mean().item())
    assert worth.mean_confidence == pytest.approx(confidence.mean().item())


def test_answers_drawn_from_their_own_probabilities_are_calibrated():
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(20_000, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).flatten()
    assert worth_of(logits, labels).error < 0.015
    assert worth_of(4 * logits, labels).error > 0.1


def test_the_error_by_chance_is_that_of_answers_drawn_from_their_own_probabilities():
    generator = torch.Generator().manual_seed(2)
    logits = 2 * torch.randn(200, 5, generator=generator)
    drawn = torch.multinomial(logits.softmax(1), 100, replacement=True, generator=generator).T
    errors = [worth_of(logits, labels).error for labels in drawn]
    assert worth_of(logits, drawn[0]).error_by_chance == pytest.approx(float(np.mean(errors)), rel=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("source", "roid", "roid:prior_correction=released"):
        experiment = bench.Experiment("clean", method, steps=8, batch=16)
        bench.run(experiment, folder / experiment.key)
    return folder


def test_a_run_keeps_and_sums_up_what_its_answers_are_worth(folder):
    source, roid, released = sorted(bench.find(folder), key=lambda run: len(run.experiment.method.spelled))
    source, roid = (source, roid) if source.experiment.method.name == "source" else (roid, source)
    assert roid.result["calibration"] == pytest.approx(roid.reliability.summary())
    assert roid.reliability.total == 8 * 16
    assert roid.accuracy == released.accuracy
    assert abs(roid.reliability.mean_confidence - roid.accuracy) < 0.12
    assert released.reliability.error > 0.5  # the fault that the scale of the answers had
    assert source.reliability.negative_log_likelihood < math.log(10)


def test_the_analysis_says_who_may_be_trusted_and_when(folder):
    runs = bench.find(folder)
    finding = Calibration().evaluate(runs)
    (sheet,) = finding.sheets
    for run, row in zip(runs, sheet.rows, strict=True):
        shown = dict(zip(sheet.columns, (cell.value for cell in row.cells), strict=True))
        kept = run.result["calibration"]
        assert shown["calibration error, %"] == pytest.approx(100 * kept["ece"])
        assert (shown["log likelihood loss"], shown["Brier score"]) == pytest.approx((kept["nll"], kept["brier"]))
        last = torch.tensor(run.steps["bin_correct"][6:] - run.steps["bin_confidence"][6:]).sum(0).abs().sum() / 32
        assert shown["in the last quarter, %"] == pytest.approx(100 * float(last))
    blocks = finding.frames["blocks"]  # of one batch
    assert blocks["batch"] == [*range(8)] * 3
    assert np.reshape(blocks["nll"], (3, 8)).mean(1) == pytest.approx([row.cells[6].value for row in sheet.rows])
    released = next(remark for remark in finding.remarks if "released" in remark)
    assert "points less sure than it is right" in released


def test_a_run_of_before_has_none_and_is_read_as_ever(folder, tmp_path):
    from tidefast.bench.results import _array

    run = bench.find(folder)[0]
    table = pq.read_table(run.folder / STEPS).drop_columns(list(calibration.COLUMNS))
    target = tmp_path / "old"
    target.mkdir()
    for path in run.folder.iterdir():
        if path.name not in (STEPS, "digests.json") and path.is_file():
            (target / path.name).write_bytes(path.read_bytes())
    pq.write_table(table, target / STEPS)
    old = bench.load(target)
    assert old.reliability is None
    assert bench.metrics.summary(old)["calibration"] is None
    assert old.accuracy == run.accuracy
    assert not Calibration().accepts(old)
    with pytest.raises(ValueError, match="did not keep the probabilities of their answers; run them again"):
        Calibration().evaluate([old])
    mixed = pq.read_table(run.folder / STEPS).column("bin_images")
    assert _array(mixed).shape == (8, calibration.BINS)


def test_tables_and_pages_show_it(folder):
    arranged = arrangement.Arrangement(arrangement.read([folder]))
    sheets = comparison.Comparison(arranged).sheets()
    sheet = next(sheet for sheet in sheets if sheet.key == "calibration")
    assert len(sheet.rows) == 3
    errors = [row.cells[1].value for row in sheet.rows]
    assert max(errors) > 50 > 15 > min(errors)
    page = runs_page.render("runs", arranged, sheets)
    assert page.count('data-plot="reliability-') == 3
    content = report.ReportData("one", [report.data.history_of(bench.find(folder)[0], "a", "A")], "a", ["x"] * 10)
    assert "Confidence against accuracy" in report.page.render(content)
