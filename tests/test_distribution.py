"""Outputs of normalisation layers, DATTA, and the reset policy that watches them, against plain torch code."""

from __future__ import annotations

import functools
import gc

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import tidefast
from tidefast import datasets, methods, models, resets
from tidefast.core.state import State
from tidefast.core.step import Step
from tidefast.corruptions import corrupt
from tidefast.probes.held_statistics import HeldStatistics
from tidefast.probes.outputs import OutputMoments, Outputs
from tidefast.testing import small_network

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAM = functools.partial(torch.optim.Adam, lr=1e-4)
IMAGES = torch.rand(12, 8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
SOURCE = torch.rand(20, 3, 16, 16, generator=torch.Generator().manual_seed(2))
UNEVEN = [SOURCE[:3], SOURCE[3:14], SOURCE[14:]]


def network(norm: str = "batch") -> nn.Module:
    """With statistics and scales unlike those of a new network."""
    torch.manual_seed(0)
    net = small_network(norm).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.1, 0.5)
        if hasattr(module, "bias") and not isinstance(module, (nn.Conv2d, nn.Linear)):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.uniform_(-0.5, 0.5)
    return net


def adapter(method: methods.Method, norm: str = "batch", **options) -> tidefast.Adapter:
    return tidefast.adapt(network(norm), method, **{"optimizer": SGD, "source": SOURCE, **options})


# -- outputs of normalisation layers -------------------------------------------------------------------------------


class InPlace(nn.Module):
    """As torchvision writes residual networks: what follows a normalisation layer works in place on its output."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norms = nn.ModuleList(norm(4) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu_(self.norms[0](self.first(images)))
        out = self.norms[1](self.second(hidden))
        out += hidden
        return out.mean((2, 3))

    def copied(self, images: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The same without anything in place, and the outputs."""
        first = self.norms[0](self.first(images))
        second = self.norms[1](self.second(first.relu()))
        return (second + first.relu()).mean((2, 3)), [first, second]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, functools.partial(nn.GroupNorm, 2), nn.InstanceNorm2d])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_moments_and_their_gradients_are_those_of_autograd_also_where_the_network_works_in_place(norm, layout):
    torch.manual_seed(0)
    net = InPlace(norm).double().eval()
    for parameter in net.parameters():
        parameter.requires_grad_()
    images = IMAGES[0].double().to(memory_format=layout)
    weights = [torch.rand(8, 4, dtype=torch.float64) for _ in range(4)]
    logits, layers = net.copied(images)
    expected = [layer.mean((2, 3)) for layer in layers] + [layer.var((2, 3), correction=0) for layer in layers]
    loss = logits.square().sum() + sum((w * value).sum() for w, value in zip(weights, expected, strict=True))
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    outputs = Outputs.of(net)
    with outputs.measuring(graph=True) as moments:
        logits = net(images)
    found = moments.means + moments.variances
    torch.testing.assert_close(found, expected)
    loss = logits.square().sum() + sum((w * value).sum() for w, value in zip(weights, found, strict=True))
    torch.testing.assert_close(torch.autograd.grad(loss, list(net.parameters())), gradients)


class OwnNorm(nn.Module):
    """A hand-written layer; its channels come last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens / tokens.norm(dim=-1, keepdim=True) * self.scale


class PairNorm(OwnNorm):
    """One that gives more than its output."""

    def forward(self, tokens):
        return super().forward(tokens), tokens


@pytest.mark.parametrize(
    ("layer", "shape", "places"),
    [
        (nn.BatchNorm2d(5), (4, 5, 3, 5), (2, 3)),
        (nn.BatchNorm1d(5), (4, 5, 7), (2,)),
        (nn.BatchNorm2d(5, affine=False), (4, 5, 3, 3), (2, 3)),
        (nn.GroupNorm(1, 6), (4, 6, 3, 3), (2, 3)),
        (nn.InstanceNorm2d(5, affine=True), (4, 5, 3, 5), (2, 3)),
        (nn.LayerNorm(5), (4, 7, 5), (1,)),
        (nn.LayerNorm(5), (4, 5, 5), (1,)),
        (nn.LayerNorm(5), (4, 3, 3, 5), (1, 2)),
        (nn.LayerNorm(5, elementwise_affine=False), (4, 7, 5), (1,)),
        (nn.RMSNorm(5), (4, 7, 5), (1,)),
        (OwnNorm(5), (4, 7, 5), (1,)),
    ],
)
def test_every_kind_of_layer_is_measured_over_all_but_its_images_and_channels(layer, shape, places):
    net, values = nn.Sequential(layer).eval(), torch.rand(shape) * 2
    outputs = Outputs.of(net)
    with outputs.measuring() as moments:
        result = net(values)
    torch.testing.assert_close(moments.means, [result.mean(places)])
    torch.testing.assert_close(moments.variances, [result.var(places, correction=0)])


def test_a_channel_of_one_value_has_that_mean_and_no_variance():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    outputs = Outputs.of(net)
    with outputs.measuring(graph=True) as moments:
        result = net(torch.rand(5, 4))
    torch.testing.assert_close(moments.means[0], result)
    assert torch.equal(moments.variances[0], torch.zeros(5, 3))
    torch.autograd.backward(moments.means[0].sum() + moments.variances[0].sum())
    torch.testing.assert_close(net[1].bias.grad, torch.full((3,), 5.0))


def test_a_layer_that_gives_more_than_a_tensor_is_left_alone():
    class Net(nn.Sequential):
        def forward(self, values):
            return self[1](self[0](values)[0])

    outputs = Outputs.of(net := Net(PairNorm(5), nn.LayerNorm(5)))
    with outputs.measuring(graph=True) as moments:
        net(torch.rand(4, 7, 5))
    assert len(moments.means) == 1


def test_nothing_is_measured_unasked_and_a_block_gives_the_moments_of_its_latest_pass():
    net = network()
    outputs = Outputs.of(net)
    assert Outputs.of(net) is outputs
    with outputs.measuring() as outer:
        net(IMAGES[0])
        with outputs.measuring() as inner:
            net(IMAGES[1][:5])
        assert [len(layer) for layer in outer.means] == [len(layer) for layer in inner.means] == [5, 5, 5]
        net(IMAGES[1][:3])
    net(IMAGES[0])
    assert [len(layer) for layer in outer.means] == [3, 3, 3]
    assert [len(layer) for layer in inner.means] == [5, 5, 5]


def test_a_network_that_runs_other_layers_than_before_is_named():
    outputs = Outputs.of(net := network())
    with outputs.measuring() as moments:
        net(IMAGES[0])
    with pytest.raises(ValueError, match="have 36 channels, those of the source data had 5"):
        moments.distance(torch.zeros(5), torch.zeros(5))


def test_a_network_without_normalisation_layers_is_refused():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    with pytest.raises(ValueError, match="has no such layers"):
        tidefast.adapt(plain, "source", reset="distribution", source=SOURCE)


# -- DATTA -------------------------------------------------------------------------------------------------------------


class Plain:
    """DATTA on the small BatchNorm network, written out."""

    def __init__(self, share: float, confidence: float) -> None:
        self.net, self.share, self.confidence = network(), share, confidence
        self.norms = [module for module in self.net if isinstance(module, nn.BatchNorm2d)]
        affine = [p for norm in self.norms for p in (norm.weight, norm.bias)]
        self.optimizer = SGD(affine)
        self.held: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        sums, count = None, 0
        for images in UNEVEN:
            self.held = None
            _, layers = self.forward(images)
            now = [torch.stack([y.mean((2, 3)).sum(0), y.var((2, 3), correction=0).sum(0)]).detach() for y in layers]
            sums = now if sums is None else [a + b for a, b in zip(sums, now, strict=True)]
            count += len(images)
        self.references = [value / count for value in sums]
        self.held = None

    def forward(self, images):
        layers, made, position = [], [], 0
        for module in self.net:
            if module not in self.norms:
                images = module(images)
                continue
            if self.held is None:
                flat = images.detach().transpose(0, 1).flatten(1)
                mean = (1 - self.share) * flat.mean(1) + self.share * module.running_mean
                second = (flat - mean[:, None]).square().mean(1)
                made.append((mean, (1 - self.share) * second + self.share * module.running_var))
            mean, variance = (self.held or made)[position]
            position += 1
            images = functional.batch_norm(images, mean, variance, module.weight, module.bias, eps=1e-5)
            layers.append(images)
        self.held = self.held or made
        return images, layers

    def step(self, images):
        logits, layers = self.forward(images)
        aligned = sum(
            (y.mean((2, 3)) - m).abs().mean() + (y.var((2, 3), correction=0) - v).abs().mean()
            for y, (m, v) in zip(layers, self.references, strict=True)
        )
        loss, probabilities = aligned, logits.softmax(1)
        confident = probabilities.amax(1) > self.confidence
        if confident.any():
            loss = loss - (probabilities * logits.log_softmax(1)).sum(1)[confident].mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return logits.detach(), float(loss.detach()), float(aligned.detach()), int(confident.sum())


@pytest.mark.parametrize(("share", "confidence"), [(0.75, 0.1292), (0.0, 0.145), (1.0, 1.0)])
def test_datta_steps_as_written_out_by_hand(share, confidence):
    method = methods.DATTA(source_share=share, confidence=confidence)
    adapted, plain = adapter(method, source=UNEVEN), Plain(share, confidence)
    chosen = []
    for images in IMAGES[:4]:
        logits, loss, aligned, confident = plain.step(images)
        torch.testing.assert_close(adapted(images), logits)
        assert adapted.last.loss == pytest.approx(loss, rel=1e-5)
        assert adapted.state["own_reset"]["distance"] == pytest.approx(aligned, rel=1e-5)
        chosen.append(confident)
    values = torch.cat([p.detach() for norm in plain.norms for p in (norm.weight, norm.bias)])
    torch.testing.assert_close(adapted.network.arena.values, values)
    assert sum(chosen) == 0 if confidence == 1.0 else 0 < sum(chosen) < 32


def test_with_nothing_but_the_sources_share_the_network_is_the_source_model():
    adapted, plain = adapter(methods.DATTA(source_share=1.0)), network()
    torch.testing.assert_close(adapted.predict(IMAGES[0]), plain(IMAGES[0]), rtol=1e-5, atol=1e-6)
    adapted(IMAGES[0])
    assert torch.equal(adapted.state["method"].tensor("statistics"), HeldStatistics.of(adapted.network.module).source)
    adapted.network.arena.restore()
    assert torch.equal(adapted.predict(IMAGES[1]), plain(IMAGES[1]))


def test_statistics_come_from_the_first_batch_and_stay_until_a_reset():
    adapted = adapter(methods.DATTA(detect=False), reset=resets.Periodic(every=3), num_classes=10)
    state = adapted.state["method"]
    adapted.predict(IMAGES[5])
    assert state["statistics"] is None
    adapted(IMAGES[0])
    first = state.tensor("statistics").clone()
    adapted(IMAGES[1])
    assert torch.equal(state.tensor("statistics"), first)
    adapted(IMAGES[2])
    assert adapted.last.reset_fraction == 1.0
    assert state["statistics"] is None
    adapted(IMAGES[0])
    assert torch.equal(state.tensor("statistics"), first)  # of the parameters at the source, and this batch
    adapted.reset()
    assert adapted.state["method"]["statistics"] is None


def test_a_lone_image_before_any_batch_is_normalised_as_by_the_source():
    adapted, plain = adapter(methods.DATTA(source_share=0.0), window=1), network()
    assert torch.equal(adapted.predict(IMAGES[0, :1]), plain(IMAGES[0, :1]))
    adapted(IMAGES[0, :1])
    assert adapted.last.skipped is None
    assert adapted.state["method"]["statistics"] is None


@pytest.mark.parametrize("norm", ["layer", "group"])
def test_networks_without_batchnorm_are_drawn_to_the_source_by_their_own_layers(norm):
    adapted = adapter(methods.DATTA(confidence=1.0, detect=False), norm)
    lost = []
    for _ in range(8):
        adapted(IMAGES[0] * 0.5)
        lost.append(adapted.last.loss)
    assert lost[-1] < 0.9 * lost[0]
    assert len(adapted.network.arena) == sum(
        p.numel()
        for m in network(norm).modules()
        if isinstance(m, (nn.LayerNorm, nn.GroupNorm))
        for p in m.parameters()
    )


def live_moments() -> int:
    gc.collect()
    return sum(type(thing) is OutputMoments for thing in gc.get_objects())


def test_nothing_of_a_step_is_kept_alive():
    for method, policy in ((methods.DATTA(), None), (methods.Tent(), "distribution"), (methods.ROID(), "distribution")):
        adapted = adapter(method, reset=policy)
        before = live_moments()
        adapted(IMAGES[0])
        assert live_moments() == before


def test_datta_is_saved_in_the_middle_of_a_window_and_continued(tmp_path):
    one, two = (adapter(methods.DATTA(), num_classes=10) for _ in range(2))
    for images in IMAGES[:4]:
        one(images)
    one.save(tmp_path / "state.safetensors")
    two.load(tmp_path / "state.safetensors")
    assert len(two.state["own_reset"].tensor("past")) == 4
    for images in IMAGES[4:8]:
        assert torch.equal(one(images), two(images))


def test_the_published_settings():
    assert methods.DATTA() == methods.DATTA(source_share=0.75, confidence=0.8, detect=True, threshold=1.1)
    assert methods.DATTA.for_cifar() == methods.DATTA(source_share=0.5)
    assert methods.DATTA().own_reset() == resets.Distribution(threshold=1.1, short=None, long=None)
    assert methods.DATTA(detect=False).own_reset() is None
    optimizer = adapter(methods.DATTA(), optimizer=None).optimizer
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.param_groups[0]["lr"] == 1e-5


def test_references_are_needed_and_belong_to_the_share_they_were_made_with(tmp_path):
    with pytest.raises(ValueError, match="DATTA needs source images"):
        tidefast.adapt(network(), "datta")
    with pytest.raises(ValueError, match="Distribution needs source images"):
        tidefast.adapt(network(), "tent", reset="distribution")
    prepared = tidefast.prepare(network(), methods.DATTA(), SOURCE)
    assert prepared.tensors["output_means"].shape == prepared.tensors["output_variances"].shape == (36,)
    with pytest.raises(tidefast.SnapshotError, match="other settings"):
        adapter(methods.DATTA(source_share=0.5), source=prepared)


# -- the reset policy --------------------------------------------------------------------------------------------------


def written_out(distances, short, long, threshold):
    """The published detector: a list and a window that restart with the value at hand when they signal."""
    many, few, signals = [], [], []
    for distance in distances:
        signal = False
        if len(many) >= long:
            signal = sum(few) / len(few) > threshold * sum(many) / len(many)
        if signal:
            many, few = [distance], [distance]
        else:
            many, few = [*many, distance][-long:], [*few, distance][-short:]
        signals.append(signal)
    return signals


@pytest.mark.parametrize(("short", "long"), [(1, 2), (2, 9), (3, 15)])
def test_the_policy_signals_where_the_published_detector_does(short, long):
    policy = resets.Distribution(1.1, short, long)
    adapted = adapter(methods.Tent(), reset=policy)
    state = State(policy.fields(adapted.network, 10))
    step = Step(1, IMAGES[0], torch.zeros(8, 10), adapted.network, adapted.constants, 0)
    generator = np.random.default_rng(0)
    distances = np.repeat(generator.uniform(5, 10, 40), 10) * generator.uniform(0.9, 1.1, 400)
    signals = []
    for distance in distances:
        state["distance"] = float(distance)
        signals.append(policy.observe(step, state).cut == 0)
        if signals[-1]:
            state.restart()
    assert signals == written_out(distances, short, long, 1.1)
    assert 5 < sum(signals) < 200


def test_a_reset_by_someone_else_empties_the_windows():
    adapted = adapter(methods.DATTA(), reset=resets.Periodic(every=3))
    for images in IMAGES[:3]:
        adapted(images)
    assert adapted.state["own_reset"]["past"] is None
    assert adapted.state["own_reset"]["first"] is None
    adapted(IMAGES[3])
    assert len(adapted.state["own_reset"].tensor("past")) == 1


def test_a_batch_whose_distance_is_no_number_tells_nothing():
    policy = resets.Distribution(1.1, 1, 2)
    adapted = adapter(methods.Tent(), reset=policy)
    adapted(IMAGES[0])
    state = State(policy.fields(adapted.network, 10))
    state.update(adapted.state["reset"])
    before = state.tensor("past").clone()
    state["distance"] = float("inf")
    step = Step(2, IMAGES[0], torch.zeros(8, 10), adapted.network, adapted.constants, 0)
    assert policy.observe(step, state).cut is None
    assert torch.equal(state.tensor("past"), before)


def test_the_distance_on_another_method_is_that_of_its_own_answering_pass():
    """Under batch statistics, for the stream and the references alike, and with the adapted parameters."""
    adapted = adapter(methods.ROID(), reset=resets.Distribution(), source=UNEVEN)
    adapted(IMAGES[0])
    plain = network()
    norms = [module for module in plain if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.running_mean = norm.running_var = None
        norm.track_running_stats = False

    def moments(images):
        seen = []
        hooks = [norm.register_forward_hook(lambda m, i, out: seen.append(out.clone())) for norm in norms]
        plain(images)
        for hook in hooks:
            hook.remove()
        return [torch.stack([y.mean((2, 3)), y.var((2, 3), correction=0)]).detach() for y in seen]

    sums = [sum(found.sum(1) for found in layers) for layers in zip(*map(moments, UNEVEN), strict=True)]
    for images in IMAGES[1:3]:
        start = 0
        for norm in norms:
            for parameter in (norm.weight, norm.bias):
                parameter.data.copy_(adapted.network.arena.values[start : start + parameter.numel()])
                start += parameter.numel()
        expected = sum(
            2 * float((found - total[:, None] / len(SOURCE)).abs().mean())
            for found, total in zip(moments(images), sums, strict=True)
        )
        adapted(images)
        assert adapted.state["reset"].number("distance") == pytest.approx(expected, rel=1e-4)


def test_the_policy_leaves_the_numbers_of_its_method_alone():
    watched, alone = adapter(methods.ROID(), reset=resets.Distribution()), adapter(methods.ROID(), source=None)
    for images in IMAGES[:3]:
        assert torch.equal(watched(images), alone(images))
    assert torch.equal(watched.network.arena.values, alone.network.arena.values)


@pytest.mark.parametrize("method", [methods.DATTA(), methods.Tent()])
def test_a_batch_that_repeats_without_learning_never_triggers(method):
    policy = resets.Distribution(threshold=1.0001, short=1, long=3)
    adapted = adapter(method, reset=policy, optimizer=functools.partial(torch.optim.SGD, lr=0.0))
    for _ in range(12):
        adapted(IMAGES[0])
        assert adapted.last.reset_fraction == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 0.0}, "threshold must lie in"),
        ({"short": 0, "long": 3}, "short must be a whole number"),
        ({"short": 3, "long": 3}, "long must be a whole number of at least 4"),
        ({"long": 9}, "short and long go together"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        resets.Distribution(**settings)


def stream(domains):
    """Batches of 64 corrupted test images."""
    images = datasets.bundled("test").images
    order = np.random.default_rng(0).permutation(len(images))
    for batch, corruption in enumerate(domains):
        chosen = images[order[64 * batch : 64 * (batch + 1)]]
        yield tensor(corrupt(chosen, corruption, 3, seed=batch, scale="cifar"))


def tensor(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


@pytest.mark.parametrize("method", [methods.DATTA.for_cifar(), methods.Tent()])
def test_a_real_change_of_corruption_triggers_and_a_stationary_stream_does_not(method):
    policy = None if isinstance(method, methods.DATTA) else resets.Distribution()
    train = datasets.bundled("train").images
    source = tensor(train[np.random.default_rng(1).permutation(len(train))[:192]])
    adapted = tidefast.adapt(models.load("bundled-resnet"), method, reset=policy, source=source, optimizer=ADAM)
    fired = []
    for images in stream(["gaussian_noise"] * 13 + ["contrast"] * 4):
        adapted(images)
        fired.append(adapted.last.reset_fraction == 1.0)
    assert not any(fired[:14])  # the first batch after the change counts from the next one on
    assert sum(fired[14:]) == 1
