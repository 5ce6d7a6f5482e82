"""The guard: what it sees, what it does then, and what it leaves alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tidefast
from tidefast import datasets, models, resets, streams
from tidefast.resets.guard.canaries import lead_on_stream
from tidefast.resets.guard.look import _power, _rings, dress
from tidefast.testing import small_network

ETA = "eta:similarity_margin=0.4"


@pytest.fixture(scope="module")
def network():
    return models.load("bundled-resnet")


@pytest.fixture(scope="module")
def canaries() -> Tensor:
    held = datasets.open("bundled:part=held")
    return torch.as_tensor(np.asarray(held.images)[::5][:64]).permute(0, 3, 1, 2).float() / 255


@pytest.fixture(scope="module")
def drift():
    stream = streams.make("drift", part="stream", seed=3, batch=16, steps=60)
    return [(batch.images, batch.labels) for batch in (stream[k] for k in range(60))]


def in_use(adapter: tidefast.Adapter) -> float:
    """The learning rate over the one that was given: less for resets so far, and for evidence at hand."""
    state = adapter.state["reset"]
    return state["rate"] * (1.0 - state["lost"] / adapter.policy.limit)


def accuracy(adapter: tidefast.Adapter, batches) -> float:
    return float(np.mean([(adapter(images).argmax(1) == labels).float().mean() for images, labels in batches]))


@given(st.integers(0, 1000), st.sampled_from(["blur", "noise", "contrast"]))
def test_dressed_images_have_the_colour_and_the_spectrum_of_the_others(seed, corruption):
    generator = torch.Generator().manual_seed(seed)
    clean = torch.rand(16, 3, 24, 24, generator=generator).sub(0.5)
    like = torch.rand(8, 3, 24, 24, generator=generator).sub(0.5)
    if corruption == "blur":
        like = torch.nn.functional.avg_pool2d(like, 3, 1, 1)
    elif corruption == "noise":
        like = like + torch.randn(like.shape, generator=generator)
    else:
        like = 0.2 * like + 0.3
    dressed, rings = dress(clean, like, generator), _rings(24, 24, clean.device)
    assert torch.allclose(dressed.mean((0, 2, 3)), like.mean((0, 2, 3)), atol=0.1)
    ours, theirs = (
        _power(torch.fft.rfft2(images - images.mean((0, 2, 3), keepdim=True)), rings)[:, 1:13]
        for images in (dressed, like)
    )
    assert (ours / theirs).log().abs().mean() < 0.35


def test_images_of_another_size_stay_as_they_are():
    clean, generator = torch.rand(4, 3, 8, 8), torch.Generator()
    assert dress(clean, torch.rand(4, 3, 16, 16), generator) is clean
    assert dress(torch.rand(4, 7), torch.rand(4, 7), generator).shape == (4, 7)


def test_every_look_has_noise_of_its_own(canaries):
    generator = torch.Generator().manual_seed(0)
    like = torch.rand(16, 3, 32, 32, generator=generator)
    first, second = (dress(canaries[:8], like, generator) for _ in range(2))
    assert not torch.allclose(first, second, atol=0.05)


def test_canaries_are_drawn_from_all_classes_of_sorted_source_images(network):
    held = datasets.open("bundled:part=held")
    order = np.argsort(held.labels, kind="stable")
    images = torch.as_tensor(np.asarray(held.images)[order]).permute(0, 3, 1, 2).float() / 255
    prepared = tidefast.prepare(network, "tent", images, reset="guard:canaries=64")
    classes = prepared.tensors["guard_answers"][0]
    assert len(classes) == 64
    assert len(classes.unique()) == 10
    assert len(classes[:16].unique()) >= 6, "a batch of canaries mixes classes as a stream does"


def test_losses_add_up_less_the_allowance_and_never_below_zero_and_half_remains_of_an_alarm(network, canaries, drift):
    """A second, plain account of the sum from what is measured: at every look, and after every alarm."""
    guard = resets.Guard(limit=3.0, allowance=0.5, asked=32)
    adapter = tidefast.adapt(network, "tent", reset=guard, source=canaries, optimizer="adam:lr=0.03")
    evidence, fired, alarms = 0.0, 0, 0
    for images, _ in drift:
        adapter(images)
        measured = adapter.last.measurements
        if "evidence" in measured:
            step = measured["evidence"] - evidence
            lost = 32 * (measured["reference_agreement"] - measured["agreement"])
            assert step <= max(0.0, lost) - 0.5 + 1e-5 or measured["evidence"] == 0.0
            assert measured["evidence"] >= 0.0
            evidence = measured["evidence"]
            if evidence >= 3.0:
                confirmed = adapter.last.reset_fraction == 1.0
                evidence, alarms, fired = 0.0 if confirmed else 1.5, alarms + 1, fired + confirmed
            else:
                assert adapter.last.reset_fraction == 0.0
            assert adapter.state["reset"]["lost"] == evidence
    assert 0 < fired < alarms, "some alarms are confirmed by more canaries, and some are not"


def test_an_alarm_that_more_canaries_do_not_confirm_leaves_parameters_and_the_doubt(network, canaries, drift):
    guard = resets.Guard(limit=0.5, allowance=0.0, confirmed=1e9)
    adapter = tidefast.adapt(network, "tent", reset=guard, source=canaries, optimizer="adam:lr=0.03")
    alarms = 0
    for images, _ in drift[:20]:
        adapter(images)
        if adapter.last.measurements.get("evidence", 0.0) >= 0.5:
            alarms += 1
            assert adapter.state["reset"]["lost"] == 0.25
        assert adapter.last.reset_fraction == 0.0
        assert adapter.state["reset"]["rate"] == 1.0
    assert alarms > 0
    assert adapter.optimizer.param_groups[0]["lr"] == pytest.approx(0.03 * in_use(adapter))


def test_while_in_doubt_both_networks_answer_with_the_same_weight(network, canaries, drift):
    guard = resets.Guard(limit=2.0, allowance=0.0, confirmed=1e9)
    adapter = tidefast.adapt(network, "tent", reset=guard, source=canaries, optimizer="adam:lr=0.03")
    plain, reference = tidefast.adapt(network, "tent"), tidefast.adapt(network, "batchnorm")
    in_doubt = []
    for images, _ in drift[:30]:
        plain.network.arena.assign(adapter.network.arena.values)
        known, own = reference(images), plain.predict(images)
        predicted, answered = adapter.predict(images), adapter(images)
        in_doubt.append(adapter.last.measurements["in_doubt"] == 1.0)
        assert torch.equal(answered, predicted)
        if in_doubt[-1]:
            both = [logits - logits.mean(1, keepdim=True) for logits in (own, known)]
            of_equal_spread = sum(logits / logits.std() for logits in both)
            assert torch.allclose(answered / answered.std(), of_equal_spread / of_equal_spread.std(), atol=1e-4)
            assert 0.5 < answered.std() / known.std() < 1.1, "as sure as the network that does not adapt, or less"
        else:
            assert torch.equal(answered, own)
    assert any(in_doubt)
    assert not all(in_doubt)


def test_a_network_that_learns_nothing_is_never_reset(network, canaries, drift):
    adapter = tidefast.adapt(network, "batchnorm", reset="guard", source=canaries)
    for images, _ in drift:
        adapter(images)
        assert adapter.last.reset_fraction == 0.0
        assert adapter.last.measurements.get("evidence", 0.0) == 0.0


@pytest.mark.parametrize("method", ["tent", "eta:similarity_margin=0.4", "roid"])
def test_a_rate_a_hundred_times_too_high_corrects_itself(network, canaries, drift, method):
    plain = accuracy(tidefast.adapt(network, method, optimizer="adam:lr=0.1"), drift)
    guarded = tidefast.adapt(network, method, reset="guard", source=canaries, optimizer="adam:lr=0.1")
    reference = accuracy(tidefast.adapt(network, "batchnorm"), drift)
    held = accuracy(guarded, drift)
    assert plain < reference - 0.15
    assert held > reference - 0.06
    assert guarded.last.measurements["rate"] <= 0.5
    assert guarded.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * in_use(guarded))


def test_disturbed_parameters_are_seen_within_two_looks(network, canaries, drift):
    adapter = tidefast.adapt(network, "eta", reset="guard", source=canaries, optimizer="sgd:lr=0")
    for images, _ in drift[:20]:
        adapter(images)
        assert adapter.last.reset_fraction == 0.0
    values = adapter.network.arena.values
    adapter.network.arena.assign(values + torch.randn(values.shape, generator=torch.Generator().manual_seed(0)))
    steps = 0
    for images, _ in drift[20:40]:
        adapter(images)
        steps += 1
        if adapter.last.reset_fraction:
            break
    assert steps <= 16
    assert adapter.last.reset_fraction == 1.0
    assert torch.equal(adapter.network.arena.values, adapter.network.arena.source)
    assert adapter.last.measurements["agreement"] < adapter.last.measurements["reference_agreement"]


@pytest.fixture(scope="module")
def ahead(drift) -> tuple[tidefast.Adapter, Tensor]:
    """A network without batch statistics that learns much on its stream, and the parameters that its guard keeps."""
    source = torch.as_tensor(np.asarray(datasets.open("bundled:part=held").images)).permute(0, 3, 1, 2).float() / 255
    vit = models.load("bundled-vit")
    adapter = tidefast.adapt(vit, ETA, reset="guard", source=source, optimizer="adam:lr=1e-3")
    for images, _ in drift:
        adapter(images)
        assert adapter.last.reset_fraction == 0.0
    return adapter, adapter.state["kept"].tensor("kept_parameters").clone()


def disturbed_until_it_goes_back(adapter: tidefast.Adapter, batches) -> tidefast.StepRecord:
    """The record of the step that goes back, with the parameters disturbed and the learning rate 0."""
    values = adapter.network.arena.values
    adapter.network.arena.assign(values + 2 * torch.randn(values.shape, generator=torch.Generator().manual_seed(0)))
    for group in adapter.optimizer.param_groups:
        group["lr"] = 0.0
    for images, _ in batches:
        adapter(images)
        if adapter.last.reset_fraction:
            return adapter.last
    raise AssertionError("harm was not seen")


def test_it_goes_back_to_the_parameters_that_were_furthest_ahead(ahead, drift, tmp_path):
    adapter, kept = ahead
    assert not torch.equal(kept, adapter.network.arena.source)
    adapter.save(tmp_path / "state")
    record = disturbed_until_it_goes_back(adapter, drift[-20:])
    assert record.measurements["back_to_kept"] == 1.0
    assert torch.equal(adapter.network.arena.values, kept)
    adapter.load(tmp_path / "state")


def test_it_goes_back_to_the_source_where_that_is_better_now(ahead, drift, tmp_path):
    adapter, kept = ahead
    adapter.save(tmp_path / "state")
    noise = torch.randn(kept.shape, generator=torch.Generator().manual_seed(1))
    adapter._session.states["kept"]["kept_parameters"] = kept + 2 * noise  # as if the stream had left them behind
    record = disturbed_until_it_goes_back(adapter, drift[-20:])
    assert record.measurements["back_to_kept"] == 0.0
    assert torch.equal(adapter.network.arena.values, adapter.network.arena.source)
    adapter.load(tmp_path / "state")


def test_each_reset_lowers_the_rate_by_how_soon_harm_came_and_again_by_what_it_was(network, canaries, drift):
    guard = resets.Guard(limit=1.0, allowance=0.0, harshest=0.4, patience=20, growth=1.0)
    adapter = tidefast.adapt(network, "tent", reset=guard, source=canaries, optimizer="adam:lr=0.5")
    rate, since, fired = 1.0, 0, 0
    for images, _ in drift[:60]:
        adapter(images)
        since += 1
        if adapter.last.reset_fraction:
            rate, since, fired = rate * rate * min(0.5, max(0.4, since / 20)), 0, fired + 1
        assert adapter.state["reset"]["rate"] == pytest.approx(rate)
    assert fired >= 2


def test_the_rate_falls_with_the_evidence_and_comes_back_with_it(network, canaries, drift):
    adapter = tidefast.adapt(network, "tent", reset=resets.Guard(limit=8.0), source=canaries, optimizer="adam:lr=0.01")
    rates = []
    for images, _ in drift:
        adapter(images)
        rates.append(adapter.optimizer.param_groups[0]["lr"] / 0.01)
        assert rates[-1] == pytest.approx(in_use(adapter))
    assert adapter.state["reset"]["rate"] == 1.0  # it was not reset
    assert min(rates) < 0.9
    assert any(later > earlier for earlier, later in itertools.pairwise(rates))


def test_it_looks_at_once_and_then_less_and_less_often_until_it_has_its_pace(network, canaries, drift):
    adapter = tidefast.adapt(network, "batchnorm", reset="guard", source=canaries)
    looks = []
    for images, _ in drift * 2:
        adapter(images)
        if "evidence" in adapter.last.measurements:
            looks.append(adapter.step)
    gaps = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert looks[:8] == list(range(1, 9))
    assert gaps == sorted(gaps)
    assert gaps[-1] == 8  # 128 images, in batches of 16


def test_the_rate_grows_back_to_what_was_given_and_not_beyond(network, canaries, drift):
    guard = resets.Guard(limit=1.0, asked=16, quiet=2, growth=2.0)
    adapter = tidefast.adapt(network, "tent", reset=guard, source=canaries, optimizer="adam:lr=0.5")
    rates = []
    for images, _ in drift[:40]:
        adapter(images)
        rates.append(adapter.last.measurements["rate"])
        assert adapter.optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * in_use(adapter))
    assert min(rates) < 0.2
    assert any(later > earlier for earlier, later in itertools.pairwise(rates))
    assert max(rates) <= 1.0
    adapter.reset()
    assert adapter.optimizer.param_groups[0]["lr"] == 0.5


def test_where_batch_statistics_fail_the_source_as_it_was_trained_answers_until_they_do_not(network, canaries, drift):
    order = {"name": "dirichlet", "delta": 0.1}
    stream = streams.make("drift-easy", part="stream", seed=3, batch=16, steps=40, order=order)
    ordered = [(batch.images, batch.labels) for batch in (stream[k] for k in range(40))]
    adapter = tidefast.adapt(network, "eta", reset="guard", source=canaries)
    held = accuracy(adapter, ordered)
    assert adapter.state["reset"]["trained_answers"] == 1
    assert held > accuracy(tidefast.adapt(network, "source"), ordered) - 0.05
    assert held > accuracy(tidefast.adapt(network, "batchnorm"), ordered) + 0.2
    accuracy(adapter, drift[:24])
    assert adapter.state["reset"]["trained_answers"] == 0
    reference = accuracy(tidefast.adapt(network, "batchnorm"), drift[24:])
    assert accuracy(adapter, drift[24:]) > reference - 0.02


def test_the_source_as_it_was_trained_does_not_take_over_where_it_fails(network, canaries, drift):
    adapter = tidefast.adapt(network, "eta", reset="guard", source=canaries)
    for images, _ in drift:
        adapter(images)
        assert adapter.state["reset"]["trained_answers"] == 0


@pytest.mark.parametrize(("alone", "share"), [(0.0, 1.0), (1.0, 0.5)])
def test_the_source_as_it_was_trained_answers_alone_only_where_it_is_far_ahead(network, canaries, alone, share):
    stream = streams.make(
        "drift-easy", part="stream", seed=3, batch=16, steps=24, order={"name": "dirichlet", "delta": 0.1}
    )
    adapter = tidefast.adapt(network, "eta", reset=resets.Guard(alone=alone), source=canaries)
    for images in (batch.images for batch in stream):
        logits = adapter.predict(images)
        adapter(images)
    assert adapter.state["reset"]["trained_answers"] == 1
    trained = tidefast.adapt(network, "source").predict(images)
    assert torch.equal(logits, trained) == (share == 1.0)


def test_confidence_that_is_lost_between_canaries_and_stream_counts_against_a_network():
    """Both answer the same canaries right, and as surely; on the stream one is surer than the other."""
    right, sure = torch.tensor([1.0, 0.0, 1.0, 1.0]).repeat(8), torch.full((32,), 0.8)
    assert lead_on_stream(right - sure, right - sure, torch.zeros(16)) == (0.0, 0.0)
    ahead = torch.tensor([0.3, 0.5]).repeat(8)
    lead, errors = lead_on_stream(right - sure, right - sure, ahead)
    assert abs(lead - 0.4) < 1e-6
    assert errors > 4.0
    behind, errors = lead_on_stream(right - sure, right - sure, -ahead)
    assert abs(behind + 0.4) < 1e-6
    assert errors < -4.0
    # A network that is as much surer of the canaries too loses no confidence between them and the stream.
    assert abs(lead_on_stream(right - sure - 0.4, right - sure, ahead)[0]) < 1e-6


def test_without_canaries_it_sees_a_total_collapse(network, drift):
    adapter = tidefast.adapt(network, "eta", reset="guard", optimizer="sgd:lr=0")
    for images, _ in drift[:8]:
        adapter(images)
        assert adapter.last.reset_fraction == 0.0
    values = adapter.network.arena.values
    adapter.network.arena.assign(5 * torch.randn(values.shape, generator=torch.Generator().manual_seed(0)))
    fired = []
    for images, _ in drift[8:24]:
        adapter(images)
        fired.append(adapter.last.reset_fraction)
    assert 1.0 in fired


def test_source_images_are_taken_where_they_are_of_use(canaries):
    images = torch.rand(8, 3, 32, 32)
    for method in ("eta", "eata"):
        adapter = tidefast.adapt(small_network(), method, reset="guard", source=canaries)
        adapter(images)
        assert "evidence" in adapter.last.measurements
    with pytest.raises(ValueError, match="uses no source data"):
        tidefast.adapt(small_network(), "eta", reset="asr", source=canaries)


def test_a_preparation_for_the_method_alone_leaves_the_guard_to_the_stream(canaries):
    net = small_network()
    prepared = tidefast.prepare(net, "eata", canaries)
    adapter = tidefast.adapt(net, "eata", reset="guard", source=prepared)
    adapter(torch.rand(8, 3, 32, 32))
    assert "kept_belief" in adapter.last.measurements
