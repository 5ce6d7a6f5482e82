"""Each method does what its sheet says, step by step, against plain formulas in float64."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor, nn

import recorded
import tidefast
from tidefast import methods, resets
from tidefast.augment import colour as augment
from tidefast.core import losses
from tidefast.core.state import State
from tidefast.methods.shared.soft_likelihood import correct_prior
from tidefast.testing import small_network

SGD = functools.partial(torch.optim.SGD, lr=0.1)


def network(norm: str = "layer") -> nn.Module:
    torch.manual_seed(0)
    return small_network(norm).double()


def images(seed: int = 0, count: int = 16) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed)).double()


def gradient_of(loss, net: nn.Module) -> Tensor:
    names = tidefast.core.normalization.affine_names(net)
    parts = torch.autograd.grad(loss, [net.get_parameter(name) for name in names], allow_unused=True)
    return torch.cat([part.flatten() for part in parts])


def test_tent_descends_the_mean_entropy_and_answers_with_the_logits_of_before():
    net = network()
    adapter = tidefast.adapt(net, "tent", optimizer=SGD)
    logits = net(images())
    expected = adapter.network.arena.source - 0.1 * gradient_of(losses.entropy(logits).mean(), net)
    assert torch.allclose(adapter(images()), logits)
    assert torch.allclose(adapter.network.arena.values, expected)


TRAINED = "token-12"


def test_eta_uses_reliable_samples_with_their_weights_and_remembers_them():
    net, batch = recorded.network(TRAINED), recorded.stream(TRAINED)[0]
    logits = net(batch)
    entropy, margin = losses.entropy(logits), 0.02 * math.log(10)
    reliable = entropy < margin
    assert 0 < reliable.sum() < 16  # else this test shows nothing
    loss = (torch.exp(margin - entropy[reliable].detach()) * entropy[reliable]).mean()
    adapter = tidefast.adapt(net, methods.ETA(entropy_margin=0.02, similarity_margin=0.4), optimizer=SGD)
    adapter(batch)
    assert adapter.last.selected == reliable.sum()
    assert adapter.last.loss == pytest.approx(loss.item())
    assert torch.allclose(adapter.network.arena.values, adapter.network.arena.source - 0.1 * gradient_of(loss, net))
    assert torch.allclose(adapter.state["method"].tensor("memory"), logits.softmax(1)[reliable].mean(0))


def test_eta_drops_samples_like_those_it_remembers():
    first, second = recorded.stream(TRAINED)[:2]
    adapter = tidefast.adapt(recorded.network(TRAINED), methods.ETA(similarity_margin=0.4), optimizer=SGD)
    adapter(first)
    memory = adapter.state["method"].tensor("memory").clone()
    logits = adapter.predict(second)
    likeness = nn.functional.cosine_similarity(memory[None], logits.softmax(1))
    reliable = losses.entropy(logits) < 0.4 * math.log(10)
    chosen = reliable & (likeness.abs() < 0.4)
    assert 0 < chosen.sum() < reliable.sum()  # else this test shows nothing
    adapter(second)
    assert adapter.last.selected == chosen.sum()
    expected = 0.9 * memory + 0.1 * logits.softmax(1)[chosen].mean(0)
    assert torch.allclose(adapter.state["method"].tensor("memory"), expected)


def test_eta_without_a_usable_sample_does_nothing_at_all_not_even_by_momentum():
    momentum = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    adapter = tidefast.adapt(recorded.network(TRAINED), methods.ETA(similarity_margin=2.0), optimizer=momentum)
    adapter(recorded.stream(TRAINED)[0])
    assert adapter.optimizer.state
    values, memory = adapter.network.arena.values.clone(), adapter.state["method"].tensor("memory")
    adapter.method = methods.ETA(entropy_margin=1e-12)  # from here on no sample is reliable
    adapter(recorded.stream(TRAINED)[1])
    assert (adapter.last.selected, adapter.last.loss) == (0, None)
    assert torch.equal(adapter.network.arena.values, values)
    assert torch.equal(adapter.state["method"].tensor("memory"), memory)


@pytest.mark.parametrize(("classes", "margin"), [(10, 0.4), (100, 0.1), (1000, 0.05)])
def test_published_margins_by_number_of_classes(classes, margin):
    assert methods.ETA.for_classes(classes).similarity_margin == margin
    assert methods.EATA.for_classes(classes, fisher_weight=1.0) == methods.EATA(
        similarity_margin=margin, fisher_weight=1.0
    )


def test_eata_fisher_is_the_mean_square_of_batch_gradients_to_the_models_own_labels():
    net = network()
    batches = [images(1), images(2)]
    squares = []
    for batch in batches:
        logits = net(batch)
        squares.append(gradient_of(nn.functional.cross_entropy(logits, logits.argmax(1)), net) ** 2)
    prepared = tidefast.prepare(net, "eata", [(batch, None) for batch in batches])
    assert torch.allclose(prepared.tensors["fisher"], sum(squares) / 2)


def test_eata_takes_no_more_source_images_than_asked():
    net = network()
    few = tidefast.prepare(net, methods.EATA(source_samples=16), [images(1), images(2)])
    assert torch.allclose(few.tensors["fisher"], tidefast.prepare(net, "eata", [images(1)]).tensors["fisher"])


def test_eata_adds_the_pull_to_the_source():
    make = functools.partial(tidefast.adapt, optimizer=SGD)
    margins = {"entropy_margin": 1.1, "similarity_margin": 2.0}
    eta = make(network(), methods.ETA(**margins))
    eata = make(network(), methods.EATA(**margins, fisher_weight=3.0), source=images(9))
    drift = 0.1 * torch.rand(len(eta.network.arena)).double()
    for adapter in (eta, eata):
        adapter.network.arena.assign(adapter.network.arena.source + drift)
        adapter(images())
    pull = 0.1 * 2 * 3.0 * eata.constants["fisher"] * drift
    assert torch.allclose(eata.network.arena.values, eta.network.arena.values - pull)


def test_eata_without_weight_needs_no_source_and_is_eta():
    eta, eata = tidefast.adapt(network(), "eta"), tidefast.adapt(network(), methods.EATA(fisher_weight=0.0))
    for seed in range(3):
        assert torch.equal(eta(images(seed)), eata(images(seed)))


def test_sar_takes_the_gradient_at_the_worst_point_nearby():
    net = network()
    adapter = tidefast.adapt(net, methods.SAR(entropy_margin=1.1, rho=0.05, reset_constant=0.0), optimizer=SGD)
    first = gradient_of(losses.entropy(net(images())).mean(), net)
    probe = tidefast.adapt(net, "tent").network
    probe.arena.assign(probe.arena.source + 0.05 * first / first.norm())
    losses.entropy(probe(images())).mean().backward()
    adapter(images())
    assert torch.allclose(adapter.network.arena.values, adapter.network.arena.source - 0.1 * probe.arena.gradients)


@pytest.mark.parametrize("keep", [True, False])
def test_sar_recovers_when_too_certain_and_its_momentum_stays_or_goes(keep):
    adapter = tidefast.adapt(network(), methods.SAR(entropy_margin=1.1, reset_constant=5.0, keep_momentum=keep))
    adapter(images())
    assert adapter.last.reset_fraction == 1.0
    assert torch.equal(adapter.network.arena.values, adapter.network.arena.source)
    assert bool(adapter.optimizer.state) is keep
    assert adapter.state["own_reset"]["average"] is None


def test_roid_pulls_to_the_source_after_each_step():
    free, tied = (
        tidefast.adapt(network(), methods.ROID(source_momentum=m, consistency=False), optimizer=SGD) for m in (1.0, 0.9)
    )
    free(images())
    tied(images())
    assert torch.allclose(tied.network.arena.values, 0.9 * free.network.arena.values + 0.1 * free.network.arena.source)


def test_roid_weighs_certain_and_diverse_samples():
    logits = network()(images())
    probabilities = logits.softmax(1)
    diversity = 1 - nn.functional.cosine_similarity(torch.full((1, 10), 0.1).double(), probabilities)
    diversity = (diversity - diversity.min()) / (diversity.max() - diversity.min())
    certainty = -losses.entropy(logits)
    certainty = (certainty - certainty.min()) / (certainty.max() - certainty.min())
    kept = diversity >= diversity.mean()
    clipped = probabilities.clamp(max=0.99)
    ratio = -(clipped * torch.log(clipped / (1 - clipped) + 1e-5)).sum(1)
    expected = (torch.exp(3 * diversity * certainty) * ratio)[kept].sum() / 16
    adapter = tidefast.adapt(network(), methods.ROID(consistency=False))
    adapter(images())
    assert adapter.last.loss == pytest.approx(expected.item())
    assert adapter.last.selected == kept.sum()


@pytest.mark.parametrize("method", ["roid", "cmf"])
@pytest.mark.parametrize("batch", [images(count=1), images(count=1).expand(4, -1, -1, -1)], ids=["one", "identical"])
def test_roid_and_cmf_stay_finite_where_the_published_code_divides_by_zero(method, batch):
    adapter = tidefast.adapt(network(), method, window=1)
    assert torch.isfinite(adapter(batch)).all()
    assert adapter.last.skipped is None
    assert adapter.network.arena.is_finite()


def test_prior_correction_multiplies_by_the_smoothed_share_of_each_class():
    logits = torch.tensor([[2.0, 1.0, -1.0], [1.0, 0.0, 0.5]])
    share = logits.softmax(1).mean(0)
    smooth = max(1 / 2, 1 / 3) / share.max()
    released = logits * (share + smooth) / (1 + 3 * smooth)
    assert torch.allclose(correct_prior(logits, released=True), released)
    assert torch.allclose(correct_prior(logits), 3 * released)


@pytest.mark.parametrize("method", ["roid", "cmf"])
def test_corrected_answers_are_as_sure_as_the_network_and_name_the_released_classes(method):
    net, batch = recorded.network(TRAINED), recorded.stream(TRAINED)[0]
    adapter = tidefast.adapt(net, method)
    released = tidefast.adapt(net, {"name": method, "prior_correction": "released"})
    plain = tidefast.adapt(net, {"name": method, "prior_correction": False})
    answers, own = adapter(batch), plain(batch)
    assert torch.equal(answers.argmax(1), released(batch).argmax(1))
    assert torch.equal(adapter.network.arena.values, released.network.arena.values)
    confidence, theirs = (logits.softmax(1).amax(1).mean() for logits in (answers, own))
    assert confidence == pytest.approx(theirs.item(), abs=0.1)
    assert theirs > 0.5


def test_the_losses_of_roid_divide_by_the_configured_batch_size():
    first, second = (tidefast.adapt(network(), methods.ROID(batch_size=size)) for size in (None, 64))
    first(images())
    second(images())
    assert first.last.loss == pytest.approx(4 * second.last.loss)


def test_the_default_augmentation_repeats_with_the_seed_and_differs_between_steps():
    def run(seed):
        adapter = tidefast.adapt(network(), "roid", seed=seed)
        return [adapter(images()) for _ in range(2)][1], adapter.network.arena.values.clone()

    assert torch.equal(run(3)[0], run(3)[0])
    assert not torch.equal(run(3)[1], run(4)[1])


@pytest.mark.parametrize(("size", "gain"), [(53_120, 0.928), (38_400, 0.940), (17_952, 0.961)])
def test_cmf_filter_settles_at_the_published_gain(size, gain):
    net = nn.Sequential(nn.Linear(4, size // 2), nn.LayerNorm(size // 2), nn.Linear(size // 2, 3))
    adapter = tidefast.adapt(net, methods.CMF(consistency=False))
    state = State(adapter.method.fields(adapter.network, 3))
    for _ in range(400):
        adapter.method.after_step(tidefast.methods.Step(1, None, None, adapter.network, {}, 0), state)
    variance = state.number("variance")
    noise = 0.005 * size / 38_400
    predicted = 0.99**2 * variance + noise
    assert (1 - noise) / (predicted + 1 - noise) == pytest.approx(gain, abs=5e-4)


def test_cmf_reset_restores_the_filter_or_keeps_its_variance_as_published():
    for flag in (True, False):
        adapter = tidefast.adapt(network(), methods.CMF(reset_variance=flag), reset=resets.Periodic(every=2))
        adapter(images())
        adapter(images(1))
        state = adapter.state["method"]
        assert torch.equal(state.tensor("hidden"), adapter.network.arena.source)
        assert (state.number("variance") == 0.0) is flag


# -- augmentation ---------------------------------------------------------------------------------------------


def test_the_affine_motion_equals_padding_moving_and_cropping():
    """The published pipeline: reflect-pad by half, rotate / zoom / shift the canvas, crop the centre, flip."""
    batch = torch.rand(2, 3, 16, 16)
    angle, shift, zoom = math.radians(11.0), (2.0, -1.0), 1.07
    canvas = nn.functional.pad(batch, (8, 8, 8, 8), mode="reflect")
    moved = augment._affine(canvas, angle=angle, shift=shift, zoom=zoom, flip=False, padding="zeros")
    expected = moved[:, :, 8:24, 8:24].flip(-1)
    ours = augment._affine(batch, angle=angle, shift=shift, zoom=zoom, flip=True, padding="reflection")
    assert torch.allclose(ours, expected, atol=1e-5)


def test_a_pure_shift_moves_by_whole_pixels():
    batch = torch.rand(1, 1, 8, 8)
    moved = augment._affine(batch, angle=0.0, shift=(2, 1), zoom=1.0, flip=False, padding="border")
    assert torch.allclose(moved[:, :, 1:, 2:], batch[:, :, :-1, :-2], atol=1e-6)


def test_shifts_reach_a_sixteenth_of_the_canvas_of_odd_sizes_too():
    """The canvas is the image with int(n / 2) pixels on either side."""
    assert [augment._reach(side) for side in (32, 33, 224)] == [4.0, (33 + 2 * 16) / 16, 28.0]


def test_hue_shifts_agree_with_the_standard_library():
    import colorsys

    pixels = torch.rand(64, 3, generator=torch.Generator().manual_seed(0))
    expected = []
    for red, green, blue in pixels.tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        expected.append(colorsys.hsv_to_rgb((hue + 0.05) % 1.0, saturation, value))
    shifted = augment.shift_hue(pixels.view(64, 3, 1, 1), 0.05).view(64, 3)
    assert torch.allclose(shifted, torch.tensor(expected), atol=1e-5)


def test_augmentation_needs_images_and_says_so():
    with pytest.raises(ValueError, match="pass augment="):
        augment.ColourAffine()(torch.rand(4, 10))


def test_an_augmentation_that_takes_a_generator_is_given_one():
    seen = []

    def noise(batch, generator):
        seen.append(generator)
        return batch + 0.01 * torch.randn(batch.shape, generator=generator)

    adapter = tidefast.adapt(network(), methods.ROID(augment=noise))
    adapter(images())
    assert isinstance(seen[0], torch.Generator)
