"""Metrics on hand-made numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidefast import bench
from tidefast.bench import metrics


def test_accuracy_counts_images_not_batches():
    assert metrics.accuracy([6, 1], [8, 2]) == pytest.approx(0.7)
    assert math.isnan(metrics.accuracy([], []))


def test_a_domain_counts_once_however_many_images_it_has():
    domain, images, correct = ["fog", "snow", "fog", "clean"], [10, 10, 30, 100], [10, 5, 10, 100]
    assert metrics.by_domain(domain, images, correct) == {"fog": 0.5, "snow": 0.5, "clean": 1.0}
    assert metrics.domain_mean(domain, images, correct) == pytest.approx(2 / 3)
    assert metrics.accuracy(correct, images) == pytest.approx(125 / 150)


def test_blocks_are_weighted_by_images_and_the_last_may_be_short():
    assert metrics.windowed([4, 0, 2, 1], [4, 4, 2, 1], 3).tolist() == [0.6, 1.0]
    assert metrics.windowed([], [], 3).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(8, 16)), min_size=1, max_size=40), st.integers(1, 50))
def test_blocks_hold_every_batch_once(rows, size):
    correct, images = np.array(rows).T
    blocks = metrics.windowed(correct, images, size)
    weights = [images[at : at + size].sum() for at in range(0, len(images), size)]
    assert np.dot(blocks, weights) == pytest.approx(correct.sum())


def visits() -> np.ndarray:
    """Two domains of unequal size, three visits; the third does not come to snow."""
    domain = ["fog", "snow", "fog", "snow", "fog"]
    return metrics.visit_table(domain, [0, 0, 1, 1, 2], [10, 2, 10, 2, 10], [5, 1, 7, 0, 6])


def test_a_visit_is_the_mean_over_its_domains():
    table = visits()
    assert table[:2].tolist() == [[0.5, 0.5], [0.7, 0.0]]
    assert table[2, 0] == 0.6
    assert math.isnan(table[2, 1])
    assert metrics.by_visit(table) == pytest.approx([0.5, 0.35, 0.6])


def test_knowledge_recovery_compares_with_the_best_earlier_visit():
    assert metrics.knowledge_recovery(visits()) == pytest.approx([0.0, (0.2 - 0.5) / 2, 0.6 - 0.7])


def test_knowledge_recovery_of_a_single_visit_is_nothing():
    assert metrics.knowledge_recovery(np.array([[0.3, 0.4]])).tolist() == [0.0]


def test_collapse_is_strictly_below_the_source():
    assert metrics.collapsed(0.0126, source=0.0127)
    assert not metrics.collapsed(0.0127, source=0.0127)
    assert not metrics.collapsed(math.nan, source=0.5)


# Paired differences


def pairs(*points, blocks=()):
    return [metrics.StreamPair(one, one + np.asarray(blocks, float)) for one in points]


def test_an_interval_over_streams_lies_between_them_and_is_always_the_same():
    found = metrics.paired_difference([pairs(1.0, 2.0, 3.0, 1.5, 2.5, 2.0)])
    assert found == metrics.paired_difference([pairs(1.0, 2.0, 3.0, 1.5, 2.5, 2.0)])
    assert (found.points, found.streams, found.verdict) == (2.0, 6, "above")
    assert 1.0 < found.low < 2.0 < found.high < 3.0
    assert metrics.paired_difference([pairs(-1.0, 2.0, 1.0, -2.0, 1.0, -2.0)]).verdict == "undecided"
    assert metrics.paired_difference([pairs(*[-1.0, -2.0] * 3)]).verdict == "below"
    assert metrics.paired_difference([pairs(-1.0, -2.0)]).verdict == "undecided"  # two say nothing of streams


def test_blocks_widen_the_interval_of_few_streams():
    spread = [-4.0, 4.0] * 10
    alone = metrics.paired_difference([pairs(1.0, blocks=spread)])
    error = pairs(1.0, blocks=spread)[0].error
    assert alone.low == pytest.approx(1.0 - 1.96 * error, abs=0.3)
    assert alone.high == pytest.approx(1.0 + 1.96 * error, abs=0.3)
    two = metrics.paired_difference([pairs(1.0, 1.2, blocks=spread)])
    assert two.low < 1.0 < 1.2 < two.high
    assert math.isnan(metrics.paired_difference([pairs(1.0)]).low)
    assert metrics.paired_difference([pairs(5.0)]).verdict == "undecided"  # one number says nothing of its noise


def test_levels_are_averaged_and_not_drawn():
    apart = metrics.paired_difference([pairs(0.0, 0.2, blocks=[0, 0]), pairs(10.0, 10.2, blocks=[0, 0])])
    assert apart.points == pytest.approx(5.1)
    assert 4.9 < apart.low < apart.high < 5.3
    assert apart.streams == 4
    assert metrics.paired_difference([]).streams == 0


def test_blocks_are_of_the_same_images_only():
    own, other = ([4] * 45, [2] * 45), ([4] * 45, [1] * 45)
    assert metrics.StreamPair.of(25.0, own, other).blocks.tolist() == [25.0, 25.0]
    assert not len(metrics.StreamPair.of(25.0, own, ([4] * 44 + [5], [1] * 45)).blocks)
    assert len(metrics.StreamPair.of(0.0, ([1] * 10_000, [1] * 10_000), ([1] * 10_000, [0] * 10_000)).blocks) == 100


def test_pseudo_resets_come_eight_batches_later():
    assert metrics.pseudo_resets([0, 41, 95], 100).tolist() == [8, 49]
    assert math.isnan(metrics.batches_per_reset(100, 0))


# A reset after batch t: batches t+1..t+10 against t-9..t.


def test_the_effect_of_a_reset_is_ten_batches_against_ten():
    accuracy = np.concatenate([np.full(5, 0.9), np.full(10, 0.5), np.full(10, 0.3), np.full(5, 0.8)])
    effects = metrics.reset_effects(accuracy, [14])
    assert effects.change == pytest.approx([-0.2])  # 0.9 lies more than ten batches before, 0.8 more than ten after
    assert effects.delay.tolist() == [11.0]  # the first 0.8
    assert effects.detrimental_share == 1.0
    assert effects.beneficial_share == 0.0
    assert effects.detrimental_mean == pytest.approx(-0.2)
    assert math.isnan(effects.beneficial_mean)


def test_without_resets_there_is_nothing_to_tell():
    effects = metrics.reset_effects(np.full(30, 0.5), [])
    assert effects.change.size == 0
    for value in (effects.detrimental_share, effects.detrimental_mean, effects.recovery_delay):
        assert math.isnan(value)


def test_a_reset_after_the_first_batch_has_one_batch_before_it():
    effects = metrics.reset_effects([0.5, 0.4, 0.4, 0.6], [0])
    assert effects.change == pytest.approx([1.4 / 3 - 0.5])
    assert effects.delay.tolist() == [3.0]


def test_a_reset_after_the_last_batch_has_no_effect_to_measure():
    effects = metrics.reset_effects([0.5, 0.4, 0.4, 0.6], [1, 3])
    assert len(effects.change) == 1
    assert effects.change == pytest.approx([0.5 - 0.45])
    assert math.isnan(effects.recovery_delay)  # it did good: nothing to recover from


def test_resets_closer_than_ten_batches_do_not_see_beyond_each_other():
    #             0    1    2    3*   4    5    6*   7    8
    accuracy = [0.8, 0.8, 0.8, 0.8, 0.2, 0.3, 0.4, 0.6, 0.6]
    effects = metrics.reset_effects(accuracy, [3, 6])
    assert effects.change == pytest.approx([0.3 - 0.8, 0.6 - 0.3])
    assert effects.delay[0] == 3.0  # not made up for before the next reset, three batches later
    assert math.isnan(effects.delay[1])
    assert effects.recovery_delay == 3.0
    assert (effects.detrimental_share, effects.beneficial_share) == (0.5, 0.5)


def test_a_delay_that_never_ends_lasts_until_the_stream_does():
    assert metrics.reset_effects([0.8, 0.8, 0.1, 0.1, 0.1], [1]).delay.tolist() == [3.0]


def test_the_delay_asks_for_the_best_of_the_batches_before():
    accuracy = [0.5, 0.9, 0.5, 0.4, 0.6, 0.7, 0.9, 0.1, 0.1, 0.1]
    assert metrics.reset_effects(accuracy, [2]).delay.tolist() == [4.0]


def test_a_reset_that_changes_nothing_is_neither_good_nor_bad():
    effects = metrics.reset_effects(np.full(6, 0.5), [2])
    assert (effects.detrimental_share, effects.beneficial_share) == (0.0, 0.0)


def test_correlation_leaves_out_what_was_not_measured():
    concentration = [-2.0, math.nan, -1.0, -1.5, math.inf]
    assert metrics.correlation(concentration, [0.6, 0.0, 0.2, 0.4, 0.1]) == pytest.approx(-1.0)
    assert math.isnan(metrics.correlation([-1.0, -1.0, -1.0], [0.1, 0.2, 0.3]))
    assert math.isnan(metrics.correlation([math.nan] * 3, [0.1, 0.2, 0.3]))
    assert math.isnan(metrics.correlation([-1.0], [0.1]))


@given(st.lists(st.tuples(st.floats(-5, 0), st.floats(0, 1)), min_size=3, max_size=50))
def test_correlation_is_that_of_numpy(pairs):
    x, y = np.array(pairs).T
    if np.std(x) < 1e-3 or np.std(y) < 1e-3:
        return
    assert metrics.correlation(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)


def test_the_histogram_follows_the_same_classes_through_all_blocks():
    predicted = np.zeros((2500, 1000), np.int32)
    chosen, _ = metrics.prediction_histogram(predicted)
    predicted[:1000, chosen] = 1
    predicted[2000:, chosen[3]] = 2
    again, counts = metrics.prediction_histogram(predicted)
    assert again.tolist() == chosen.tolist()
    assert len(set(chosen.tolist())) == 10
    assert counts.shape == (3, 10)
    assert counts[0].tolist() == [1000] * 10
    assert counts[1].tolist() == [0] * 10
    assert counts[2].tolist() == [0, 0, 0, 1000, 0, 0, 0, 0, 0, 0]


def test_few_classes_are_all_chosen():
    chosen, counts = metrics.prediction_histogram(np.full((3, 4), 2), block=2)
    assert chosen.tolist() == [0, 1, 2, 3]
    assert counts.tolist() == [[4] * 4, [2] * 4]


def test_a_slow_first_batch_does_not_count():
    assert metrics.seconds_per_batch([9.0, 0.1, 0.1, 0.1, math.nan]) == pytest.approx(0.1)
    assert math.isnan(metrics.seconds_per_batch([]))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> bench.Run:
    folder = tmp_path_factory.mktemp("run")
    experiment = bench.Experiment("recurring:visits=2,images=16", "tent", reset="periodic:every=3", batch=8, seed=1)
    return bench.run(experiment, folder)


def test_a_summary_is_plain_and_agrees_with_the_columns(finished):
    summary = metrics.summary(finished)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    steps, spans = finished.steps, finished.spans
    assert summary["batches"] == summary["total"] == 16  # 2 visits, 4 corruptions, 2 batches each
    assert summary["accuracy"] == pytest.approx(steps["correct"].sum() / 128)
    assert summary["domain_mean"] == pytest.approx(summary["accuracy"])  # all domains have as many images
    assert len(summary["domains"]) == 4
    assert len(summary["visits"]) == len(summary["knowledge_recovery"]) == 2
    first = spans["visit"] == 0
    assert summary["visits"][0] == pytest.approx(spans["correct"][first].sum() / 64)
    assert summary["resets"]["count"] == 5
    assert summary["resets"]["mean_depth"] == 1.0
    assert sum(map(sum, summary["predictions"]["counts"])) == 128
    assert summary["nonfinite"] == 0
    assert summary["seconds_per_batch"] > 0


def test_a_finished_run_carries_its_summary(finished):
    assert finished.result == metrics.summary(finished)


def test_a_summary_without_predictions_does_not_touch_them(finished):
    run = bench.load(finished.folder)
    summary = metrics.summary(run, predictions=False)
    assert summary["predictions"] is None
    assert summary["accuracy"] == finished.result["accuracy"]


def test_a_run_that_has_seen_nothing_has_a_summary_too(finished, tmp_path):
    (tmp_path / "experiment.json").write_bytes((finished.folder / "experiment.json").read_bytes())
    summary = metrics.summary(bench.load(tmp_path))
    assert summary["batches"] == 0
    assert summary["accuracy"] is None
    assert summary["resets"]["count"] == 0
    json.dumps(summary, allow_nan=False)
