"""The trigger as a timer: the rule replayed, and the analysis of it."""

from __future__ import annotations

import numpy as np
import pytest

from tidefast.bench import Experiment, run
from tidefast.paper import trigger_replay
from tidefast.paper.analyses.timer import Timer
from tidefast.paper.study import StudyError
from tidefast.resets import ASR

FIELDS = {"stream": "drift", "steps": 120, "batch": 8, "seed": 3}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Batch statistics and ETA, both with ASR, on one stream."""
    folder = tmp_path_factory.mktemp("runs")
    experiments = [
        Experiment(method="batchnorm", reset="asr", **FIELDS),
        Experiment(method="eta", reset="asr", optimizer="adam:lr=1e-2", **FIELDS),
    ]
    return [run(each, folder / each.key, batches=folder / "batches") for each in experiments]


def test_the_rule_replayed_on_what_a_run_measured_resets_where_the_run_did(real):
    for each in real:
        steps = each.steps
        replayed = trigger_replay.replay(steps["concentration"], steps["inconsistency"], ASR(), 10)
        assert len(replayed) > 1
        assert replayed.tolist() == each.resets.tolist()


def test_on_noise_the_interval_grows_with_phi_and_hardly_with_anything_else():
    rng = np.random.default_rng(1)
    small, large = (rng.normal(-6.5, size, 400) for size in (0.004, 0.008))
    means = [trigger_replay.noise_intervals(small, phi, ASR(), 1000).mean() for phi in (0.0, 0.5, 0.8)]
    assert 20 < means[0] < 40
    assert means[0] < means[1] / 1.5 < means[2] / 2.5
    assert trigger_replay.noise_intervals(large, 0.0, ASR(), 1000).mean() == pytest.approx(means[0], rel=0.25)


def test_total_disagreement_holds_the_threshold_and_nothing_fires():
    assert not len(trigger_replay.replay(np.full(500, -6.4), np.ones(500), ASR(), 1000))
    assert not len(trigger_replay.noise_intervals(np.full(50, -6.4), 1.0, ASR(), 1000))


def test_resets_that_follow_falls_are_told_from_those_that_do_not():
    rng = np.random.default_rng(0)
    gain = rng.normal(0, 0.1, 600)
    after_falls = np.arange(49, 600, 50)
    for t in after_falls:
        gain[t - 9 : t + 1] -= 0.3
    r, low, _ = trigger_replay.correlation_before(after_falls, gain, 10)
    assert r < low < 0
    r, low, high = trigger_replay.correlation_before(np.sort(rng.choice(580, 12, replace=False)), gain, 10)
    assert low <= r <= high


def test_the_analysis_says_what_the_idle_model_does_and_needs_one_that_learns(real, tmp_path):
    finding = Timer().evaluate(real)
    rows = {row.label: row.cells for row in finding.sheets[0].rows}
    assert rows["BatchNorm + ASR, drift"][2].value == len(real[0].resets)
    assert rows["ETA + ASR, drift"][4].value is not None
    assert any(
        "learns nothing, so that no errors can add up, and is reset every" in remark for remark in finding.remarks
    )
    assert (tmp_path / "timer.png") in finding.write(tmp_path, "timer")
    with pytest.raises(StudyError, match="learn and were reset"):
        Timer().evaluate(real[:1])
