"""ReservoirTTA around base methods, against plain torch code and the checks of its sheet."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
import types
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import tidefast
from tidefast import corruptions, datasets, methods, models, resets
from tidefast.core.network import Network
from tidefast.core.state import State, StateView
from tidefast.core.step import Objective
from tidefast.errors import SnapshotError
from tidefast.methods.reservoir.clusters import Clusters, clustering_gradient
from tidefast.methods.reservoir.reservoir import _average, _supported
from tidefast.methods.reservoir.style import ChannelMoments, measure
from tidefast.testing import CHECKS, check_adapter, small_network

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAM = functools.partial(torch.optim.Adam, lr=0.01)
RANDOM = torch.Generator().manual_seed(1)
IMAGES = torch.rand(8, 8, 3, 16, 16, generator=RANDOM)
SOURCE = torch.rand(48, 3, 16, 16, generator=RANDOM)
DIM = 0.1 * IMAGES  # another style than IMAGES, in every channel
TINT = IMAGES * torch.tensor([1.0, 0.2, 0.02]).view(3, 1, 1)
BASES = [name for name in tidefast.list_methods() if _supported(methods.base.registry.get(name))]
FEW = {"source_styles": 20, "batch_size": 8}


def pixels(images):
    """Style of the images themselves."""
    return [images]


def network(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    return small_network(norm).eval()


def adapter(base="tent", *, norm="batch", optimizer=SGD, reset=None, **settings) -> tidefast.Adapter:
    method = tidefast.Reservoir(base, **{"style": pixels, **FEW, **settings})
    return tidefast.adapt(network(norm), method, optimizer=optimizer, reset=reset, source=SOURCE, num_classes=10)


def state_of(adapted: tidefast.Adapter) -> StateView:
    return adapted.state["method"]


def everything(adapted: tidefast.Adapter, path) -> bytes:
    adapted.save(path / "everything")
    return (path / "everything").read_bytes()


# -- the whole method -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", BASES)
def test_a_reservoir_of_one_is_the_base_method(base):
    chosen = methods.base.registry.get(base)(**({"similarity_margin": 2.0} if base in ("eta", "eata") else {}))
    alone = tidefast.adapt(network(), chosen, optimizer=SGD, source=SOURCE if chosen.needs_source else None)
    held = adapter(chosen, models=1)
    for images in [*IMAGES[:3], *DIM[:2]]:
        assert torch.equal(held(images), alone(images))
    assert torch.equal(held.network.arena.values, alone.network.arena.values)
    assert held.last.selected == alone.last.selected


class Plain:
    """ReservoirTTA around Tent, in plain torch: whole networks, torch's optimisers, no sharing."""

    def __init__(self, center, threshold, optimizer, most):
        self.center, self.threshold, self.make, self.most = center, threshold, optimizer, most
        first = network()
        for module in first.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean = module.running_var = None
                module.track_running_stats = False
        self.models = [first]
        self.optimizers = [optimizer(self.affine(first))]
        self.offsets = nn.Parameter(torch.zeros(1, len(center)))
        self.clustering = torch.optim.AdamW([self.offsets], lr=0.03)
        self.buffer = []

    @staticmethod
    def affine(model):
        return [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in (m.weight, m.bias)]

    def value(self, model, images):
        with torch.no_grad():
            p = model(images).softmax(1)
            return float(-(p * p.log()).sum(1).mean() + (p.mean(0) * p.mean(0).log()).sum())

    def __call__(self, images):
        style = images.transpose(0, 1).flatten(1).var(1).log()
        distances = (style - self.center - self.offsets.detach()).norm(dim=1)
        if len(self.models) < self.most and distances.min() > self.threshold:
            values = [self.value(model, images) for model in self.models]
            parent = values.index(min(values))
            self.models.append(copy.deepcopy(self.models[parent]))
            self.optimizers.append(self.make(self.affine(self.models[-1])))
            self.optimizers[-1].load_state_dict(copy.deepcopy(self.optimizers[parent].state_dict()))
            self.offsets = nn.Parameter(torch.cat([self.offsets.detach(), (style - self.center)[None]]))
            self.clustering = torch.optim.AdamW([self.offsets], lr=0.03)
        points = torch.stack([*self.buffer, style])
        scores = -(points[:, None] - self.center - self.offsets).norm(dim=2)
        assigned = scores.softmax(1)
        mean = assigned.mean(0)
        loss = -(assigned * scores.log_softmax(1)).sum(1).mean() + (mean * (mean + 1e-8).log()).sum()
        self.clustering.zero_grad()
        loss.backward()
        self.clustering.step()
        self.buffer.append(style)
        weights = assigned[-1].detach()
        average = copy.deepcopy(self.models[0])
        with torch.no_grad():
            for target, *entries in zip(self.affine(average), *map(self.affine, self.models), strict=True):
                target.copy_(sum(w * entry for w, entry in zip(weights, entries, strict=True)))
            answer = average(images)
        chosen = int(weights.argmax())
        p = self.models[chosen](images).log_softmax(1)
        self.optimizers[chosen].zero_grad()
        (-(p.exp() * p).sum(1).mean()).backward()
        self.optimizers[chosen].step()
        return answer, chosen, weights


@pytest.mark.parametrize("optimizer", [SGD, ADAM])
def test_steps_as_written_out_in_plain_torch(optimizer):
    """Three styles, entries that come and go with their moments, centroids that move, a full reservoir."""
    adapted = adapter(models=3, buffer=96, optimizer=optimizer, rate=0.03)
    constants = adapted.constants
    plain = Plain(constants["source_style"], constants["style_threshold"], optimizer, most=3)
    stream = [IMAGES[0], DIM[0], DIM[1], IMAGES[1], TINT[0], DIM[2], 0.5 * IMAGES[3], TINT[1], IMAGES[2], DIM[3]]
    visited = []
    for images in stream:
        answer, chosen, weights = plain(images)
        torch.testing.assert_close(adapted(images), answer, rtol=1e-4, atol=1e-5)
        assert state_of(adapted)["current"] == chosen
        assert float(weights.sum()) == pytest.approx(1.0)
        visited.append(chosen)
    assert visited[:6] == [0, 1, 1, 0, 2, 1]
    state, opened = state_of(adapted), len(plain.models)
    torch.testing.assert_close(state.tensor("offsets")[:opened], plain.offsets.detach(), rtol=1e-4, atol=1e-5)
    assert float(state.tensor("offsets")[0].norm()) > 0.05  # the first centroid has left the source too
    for index, model in enumerate(plain.models):
        live = index == state["current"]
        found = adapted.network.arena.values if live else state.tensor("entries")[index]
        expected = torch.cat([p.detach().flatten() for p in plain.affine(model)])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_new_entry_starts_from_the_one_with_the_most_mutual_information():
    adapted = adapter(models=4)
    adapted(IMAGES[0])
    adapted(DIM[0])
    arena, state = adapted.network.arena, state_of(adapted)
    entries = [state.tensor("entries")[0], arena.values.clone()]
    collapsed = arena.source.clone()
    collapsed[arena.layers[-1].start :] = 0.0  # the same logits for all images
    for informed in (0, 1):
        adapted = adapter(models=4)
        adapted(IMAGES[0])
        adapted(DIM[0])
        state = state_of(adapted)
        live, other = (collapsed, entries[0]) if informed == 0 else (entries[1], collapsed)
        adapted.network.arena.assign(live)
        state.tensor("entries")[0] = other
        route = adapted.method._route(adapted.network, TINT[0], state)
        assert (route.index, route.parent) == (2, informed)


def test_the_style_of_a_centroid_leads_to_it_and_weights_sum_to_one():
    adapted = adapter(models=3, rate=0.0)
    for images in (IMAGES[0], DIM[0], TINT[0]):
        adapted(images)
    state = state_of(adapted)
    for index, images in ((1, DIM[0]), (2, TINT[0])):
        route = adapted.method._route(adapted.network, images, state)
        assert route.index == index
        assert float(route.weights.sum()) == pytest.approx(1.0)
        assert int(route.weights.argmax()) == index


def test_two_corruptions_of_real_images_get_entries_of_their_own():
    source, stream = datasets.bundled("train")[:400].images, datasets.bundled("test")[:192].images

    def batch(images, name=None):
        images = images if name is None else corruptions.corrupt(images, name, 5, seed=0, scale="cifar")
        return torch.from_numpy(images.copy()).permute(0, 3, 1, 2).float() / 255

    adapted = tidefast.adapt(models.load("bundled-resnet"), tidefast.Reservoir(), source=batch(source))
    visited = []
    for start in (0, 64, 128):
        for name in (None, "contrast", "gaussian_noise"):
            adapted(batch(stream[start : start + 64], name))
            visited.append(state_of(adapted)["current"])
    assert visited == [0, 1, 2] * 3


# -- what resets, refusals and snapshots touch ----------------------------------------------------------------


class Now(resets.Never):
    """Resets the deeper half after the fourth step."""

    def observe(self, step, state):
        cut = step.network.arena.cut(0.5) if step.number == 4 else None
        return resets.base.Verdict(fraction=0.5, cut=cut)


@pytest.mark.parametrize("optimizer", [SGD, ADAM])
def test_a_reset_takes_the_live_entry_alone(optimizer):
    whole, cut = (adapter("cmf", optimizer=optimizer, models=3, reset=policy) for policy in (None, Now()))
    stream = [IMAGES[0], DIM[0], IMAGES[1], DIM[1]]
    for images in stream:
        whole(images)
        cut(images)
    arena, place = cut.network.arena, cut.network.arena.cut(0.5)
    assert torch.equal(arena.values[place:], arena.source[place:])
    assert torch.equal(arena.values[:place], whole.network.arena.values[:place])
    state, other = state_of(cut), state_of(whole)
    assert state["current"] == 1
    for name in ("entries", "offsets", "points", "moments", "hidden.0", "class_probabilities.0"):
        assert torch.equal(state.tensor(name), other.tensor(name))
    assert torch.equal(state.tensor("hidden")[place:], arena.source[place:])
    assert not cut.optimizer.state
    whole(IMAGES[2])  # the entry that was not live goes on as if nothing had happened, its moments included
    cut(IMAGES[2])
    assert torch.equal(arena.values, whole.network.arena.values)
    assert not bool(state_of(cut).tensor("moments")[1].any())  # those of the entry that was reset


@pytest.mark.parametrize("policy", ["rdumb", "asr"])
def test_the_policies_of_the_package_leave_the_waiting_entries_alone(policy):
    reset = resets.Periodic(every=3) if policy == "rdumb" else resets.ASR(alpha0=0.97, lambda_r=1.0)
    adapted = adapter("roid", models=3, reset=reset)
    fractions = 0
    for images in (IMAGES[0], DIM[0], DIM[1], DIM[2], IMAGES[1], DIM[3]):
        current, entries = state_of(adapted)["current"], state_of(adapted).tensor("entries").clone()
        live = adapted.network.arena.values.clone()
        adapted(images)
        now = state_of(adapted)
        if now["current"] != current:
            entries[current] = live
        assert torch.equal(now.tensor("entries"), entries)
        fractions += adapted.last.reset_fraction > 0
    assert fractions > 0
    assert now["opened"] == 2


@dataclass(frozen=True)
class Fragile(methods.Tent):
    """Tent that fails on the dimmest images: its gradient is no number, or it raises."""

    raises: bool = False

    def loss(self, step, state):
        objective = super().loss(step, state)
        if step.images.max() > 0.01:
            return objective
        if self.raises:
            raise ArithmeticError("too dark")
        return Objective(objective.loss * float("nan"), 0)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("most", [2, 3])
def test_a_bad_batch_changes_nothing_whether_it_opens_an_entry_or_goes_to_another(raises, most, tmp_path):
    adapted, twin = (adapter(Fragile(raises=raises), models=most, optimizer=ADAM) for _ in range(2))
    for images in (IMAGES[0], DIM[0], IMAGES[1]):
        adapted(images)
    adapted.save(tmp_path / "state")
    twin.load(tmp_path / "state")
    dark = 0.001 * IMAGES[2]
    assert state_of(adapted)["current"] == 0
    assert adapted.method._route(adapted.network, dark, state_of(adapted)).index == most - 1
    before = [value.clone() for value in optimizer_tensors(adapted)]
    if raises:
        with pytest.raises(ArithmeticError, match="too dark"):
            adapted(dark)
    else:
        assert torch.isfinite(adapted(dark)).all()
        assert adapted.last.skipped == "non-finite loss or gradient"
    assert all(torch.equal(a, b) for a, b in zip(before, optimizer_tensors(adapted), strict=True))
    twin.step = adapted.step
    for images in (IMAGES[3], DIM[2]):
        assert torch.equal(adapted(images), twin(images))
    assert everything(adapted, tmp_path) == everything(twin, tmp_path)


def test_the_average_is_not_rounded_by_autocast():
    adapted = adapter(models=3)
    adapted(IMAGES[0])
    adapted(DIM[0])
    route = adapted.method._route(adapted.network, IMAGES[1], state_of(adapted))
    whole = _average(adapted.network, state_of(adapted), route)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(_average(adapted.network, state_of(adapted), route), whole)


def optimizer_tensors(adapted):
    return [v for v in adapted.optimizer.state[adapted.network.arena.parameter].values() if isinstance(v, torch.Tensor)]


def test_images_without_a_style_are_answered_by_the_live_entry_and_not_clustered():
    adapted = adapter(style=lambda images: [images.log() if images.min() == 0 else images], models=3)
    adapted(IMAGES[0])
    adapted(DIM[0])
    before = {name: copy.deepcopy(state_of(adapted)[name]) for name in ("points_seen", "opened", "current")}
    black = IMAGES[1].clone()
    black[:, :, 0, 0] = 0.0
    own = adapted.network(black).detach()
    torch.testing.assert_close(adapted(black), own)
    assert adapted.last.skipped is None
    assert {name: state_of(adapted)[name] for name in before} == before


@pytest.mark.parametrize("optimizer", [SGD, ADAM])
def test_a_reservoir_is_saved_and_continued_bit_for_bit(optimizer, tmp_path):
    one, two = (adapter("roid", optimizer=optimizer, models=3, buffer=6) for _ in range(2))
    stream = [IMAGES[0], DIM[0], IMAGES[1], TINT[0], DIM[1], IMAGES[2], TINT[1], DIM[2]]
    for images in stream[:5]:
        one(images)
    two(IMAGES[5])
    one.save(tmp_path / "state.safetensors")
    two.load(tmp_path / "state.safetensors")
    for images in stream[5:]:
        assert torch.equal(one.predict(images), two.predict(images))
        assert torch.equal(one(images), two(images))
    assert everything(one, tmp_path) == everything(two, tmp_path)


@pytest.mark.parametrize("base", BASES)
def test_predict_answers_as_the_adapting_call_on_a_batch_that_opens_an_entry(base):
    adapted = adapter(base, models=3)
    for images in (IMAGES[0], DIM[0], TINT[0], DIM[1]):
        torch.testing.assert_close(adapted.predict(images), adapted(images), rtol=1e-5, atol=1e-6)
    assert state_of(adapted)["opened"] == 3


def test_the_own_reset_of_a_base_method_is_kept_apart_for_each_entry():
    adapted = adapter(methods.SAR(reset_constant=0.0, entropy_margin=2.0), models=3)
    averages: dict[int, float] = {}
    for images in (IMAGES[0], DIM[0], DIM[1], IMAGES[1], DIM[2]):
        adapted(images)
        entry, loss = state_of(adapted)["current"], adapted.last.loss
        averages[entry] = loss if entry not in averages else 0.9 * averages[entry] + 0.1 * loss
        assert adapted.state["own_reset"]["average"] == pytest.approx(averages[entry])
    assert sorted(averages) == [0, 1]


@pytest.mark.parametrize(
    ("base", "norm", "reset"),
    [
        ("eata", "batch", resets.ASR(alpha0=0.97, lambda_r=1.0)),
        ("roid", "group", resets.ASR(alpha0=0.97, target="anchor")),
        ("cmf", "layer", resets.Periodic(every=2)),
        ("sar", "batch", None),
        ({"name": "eta", "similarity_margin": 2.0, "entropy_margin": 2.0}, "layer", None),
    ],
    ids=["eata", "roid", "cmf", "sar", "eta"],
)
def test_an_entry_for_every_batch_keeps_the_promises_of_adapters(base, norm, reset):
    def make():
        method = tidefast.Reservoir(base, models=3, quantile=0.0, source_styles=10, batch_size=16)
        source = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(2))
        return tidefast.adapt(network(norm), method, reset=reset, optimizer=SGD, source=source, window=8)

    assert check_adapter(make) == list(CHECKS)
    adapted = make()
    for images in torch.rand(4, 16, 3, 32, 32, generator=torch.Generator().manual_seed(3)):
        adapted(images)
    assert state_of(adapted)["opened"] == 3


# -- clustering -----------------------------------------------------------------------------------------------


def test_one_centroid_learns_nothing_and_two_alike_stay_alike():
    points = torch.rand(5, 3)
    assert torch.equal(clustering_gradient(points, torch.rand(1, 3)), torch.zeros(1, 3))
    pair = clustering_gradient(points, torch.zeros(2, 3))
    torch.testing.assert_close(pair[0], pair[1])


def test_the_buffer_grows_with_the_clusters_and_then_samples_the_stream():
    clusters = Clusters(torch.zeros(1), most=4, buffer=16, rate=0.0)
    state = State(clusters.fields())
    generator = torch.Generator().manual_seed(0)

    def learn(value, opens=False):
        state.update(clusters.learn(state, torch.tensor([float(value)]), generator, opens=opens))

    for value in range(1, 40):
        learn(value)
    assert state["points_held"] == 4
    assert state["points_seen"] == 39
    assert not torch.equal(state.tensor("points")[:4, 0], torch.arange(1.0, 5.0))
    learn(40)
    learn(41)
    assert state["points_seen"] == 4  # over ten times the capacity
    learn(100, opens=True)
    assert (state["opened"], state["points_held"]) == (2, 5)
    assert float(state.tensor("points")[4]) == 100.0


def test_every_point_of_a_stream_is_as_likely_to_be_held():
    clusters = Clusters(torch.zeros(1), most=1, buffer=4)
    counts, generator = torch.zeros(20), torch.Generator().manual_seed(0)
    for _ in range(400):
        state = State(clusters.fields())
        for value in range(20):
            state.update(clusters.learn(state, torch.tensor([float(value)]), generator, opens=False))
        counts[state.tensor("points")[:, 0].long()] += 1
    assert float((counts / 400 - 0.2).abs().max()) < 0.08


def test_small_batches_open_no_entry():
    adapted = adapter(models=3)
    adapted(IMAGES[0])
    adapted(DIM[0][:7])
    assert state_of(adapted)["opened"] == 1
    adapted(DIM[0])
    assert state_of(adapted)["opened"] == 2


# -- style ----------------------------------------------------------------------------------------------------


def test_the_style_of_a_batch_is_the_logarithm_of_its_variance():
    maps = [torch.rand(6, 4, 5, 5), 3 * torch.rand(6, 2, 3, 3), torch.rand(6, 3)]
    expected = torch.cat([one.transpose(0, 1).flatten(1).var(1).log() for one in maps])
    moments = ChannelMoments.of(maps)
    torch.testing.assert_close(moments.style(), expected)
    halves = ChannelMoments.joined(
        [ChannelMoments.of([one[:2] for one in maps]), ChannelMoments.of([one[2:] for one in maps])]
    )
    torch.testing.assert_close(halves.style(), expected)
    chosen = torch.tensor([0, 3, 3])
    torch.testing.assert_close(moments.style(chosen), ChannelMoments.of([one[chosen] for one in maps]).style())
    assert torch.isfinite(ChannelMoments.of([torch.ones(1, 3)]).style()).all()  # one value has no variance


def test_styles_of_source_batches_come_from_passes_over_the_images():
    numbers = torch.rand(20, 1, 4)
    moments = ChannelMoments.of([numbers])
    styles = moments.styles_of_batches(8, 6)  # 8, 8, 4; 8, 8, 4
    order = torch.Generator().manual_seed(0)
    first, second = (torch.randperm(20, generator=order) for _ in range(2))
    batches = [first[:8], first[8:16], first[16:], second[:8], second[8:16], second[16:]]
    torch.testing.assert_close(styles[:, 0], torch.stack([numbers[batch].var().log() for batch in batches]))
    assert len({round(float(one), 6) for one in moments.styles_of_batches(16, 5)}) == 5  # drawn with replacement


def test_the_threshold_is_a_quantile_of_the_distances_between_source_batches():
    adapted = adapter(quantile=0.25)
    styles = ChannelMoments.of([SOURCE]).styles_of_batches(8, 20)
    pairs = sorted(float((a - b).norm()) for i, a in enumerate(styles) for b in styles[:i])
    assert float(adapted.constants["style_threshold"]) == pytest.approx(pairs[round(0.25 * 189)], rel=0.02)
    torch.testing.assert_close(adapted.constants["source_style"], styles.mean(0))


def test_the_models_style_is_that_of_its_first_three_convolutions_under_the_source():
    net = network()
    private = Network(net, methods.Tent().configure)
    private.arena.assign(private.arena.values + 1.0)
    before = private.arena.values.clone()
    ran = []
    private.module[-1].register_forward_hook(lambda *_: ran.append("head"))
    found = measure(private, IMAGES[0]).style()
    maps, values = [], IMAGES[0]
    with torch.no_grad():
        for layer in net:
            values = layer(values)
            if isinstance(layer, nn.Conv2d):
                maps.append(values)
    torch.testing.assert_close(found, ChannelMoments.of(maps).style())
    assert ran == []  # it stopped after the third
    assert torch.equal(private.arena.values, before)
    assert not [hook for module in private.module[:-1] for hook in module._forward_hooks.values()]


def test_a_network_with_fewer_convolutions_or_none_has_a_style_too():
    assert measure(Network(network("layer")), IMAGES[0]).style().shape == (16,)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    torch.testing.assert_close(measure(Network(flat), IMAGES[0]).style(), ChannelMoments.of([IMAGES[0]]).style())
    adapted = tidefast.adapt(flat, tidefast.Reservoir("tent", **FEW), source=SOURCE)
    assert adapted(IMAGES[0]).shape == (8, 10)
    table = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    assert tidefast.adapt(table, tidefast.Reservoir(**FEW), source=torch.rand(30, 4))(torch.rand(8, 4)).shape == (8, 3)


def test_the_style_is_measured_once_in_a_call():
    calls = []
    adapted = adapter(style=lambda images: calls.append(len(images)) or [images], models=3)
    calls.clear()
    for images in (IMAGES[0], DIM[0], TINT[0], DIM[1]):
        adapted(images)
    assert len(calls) == 4


def test_vgg19_gives_the_outputs_of_its_second_to_fourth_convolution(monkeypatch):
    torch.manual_seed(0)
    widths, layers = (3, 4, 5, 6, 7), []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)] if index == 1 else []
    features = nn.Sequential(*layers, nn.Conv2d(7, 8, 3))
    asked = []
    module = types.ModuleType("torchvision.models")
    module.VGG19_Weights = types.SimpleNamespace(DEFAULT="default")
    module.vgg19 = lambda weights: asked.append(weights) or types.SimpleNamespace(features=features)
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", module)
    adapted = adapter(style="vgg19")
    assert asked == ["default"]
    shift, scale = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    values = (IMAGES[0] - shift.view(3, 1, 1)) / scale.view(3, 1, 1)
    with torch.no_grad():
        second = features[2](features[0](values).relu())
        third = features[5](features[4](second.relu()))
        fourth = features[7](third.relu())
    route = adapted.method._route(adapted.network, IMAGES[0], state_of(adapted))
    torch.testing.assert_close(route.style, ChannelMoments.of([second, third, fourth]).style())
    assert "vgg" not in " ".join(name for name, _ in adapted.network.module.named_modules())

    module.vgg19 = lambda weights: (_ for _ in ()).throw(OSError("no route to host"))
    with pytest.raises(OSError, match="style='model'"):
        adapter(style="vgg19")
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(ImportError, match=r"'\.\[vision\]'"):
        adapter(style="vgg19")


# -- settings -------------------------------------------------------------------------------------------------


def test_the_base_is_a_name_an_object_or_a_mapping():
    ours = tidefast.Reservoir({"name": "eta", "similarity_margin": 0.4})
    assert ours == methods.Reservoir(methods.ETA(similarity_margin=0.4))
    assert tidefast.Reservoir({"name": "sar", "skip": ["layer4"]}).base == methods.SAR(skip=("layer4",))
    assert tidefast.Reservoir("roid").base == methods.ROID()
    assert methods.base.registry.get("reservoir")().base == methods.ETA()
    assert tidefast.Reservoir.for_cifar("roid").batch_size == 200
    assert {"tent", "eta", "eata", "sar", "roid", "cmf", "rpl", "deyo", "law", "palm"} <= set(BASES)
    published = tidefast.Reservoir()
    assert (published.models, published.buffer, published.quantile, published.rate) == (16, 1024, 0.999, 1e-4)
    assert (published.source_images, published.source_styles, published.batch_size) == (2000, 1000, 64)


@pytest.mark.parametrize("base", ["cotta", "source", "batchnorm", "lame", tidefast.Reservoir("tent")])
def test_a_base_that_is_more_than_adapted_parameters_is_refused(base):
    with pytest.raises(ValueError, match=r"methods that it can hold: .*eata, eta.*roid"):
        tidefast.Reservoir(base)


def test_what_cannot_be_is_said():
    with pytest.raises(ValueError, match="needs a name"):
        tidefast.Reservoir({"similarity_margin": 0.4})
    with pytest.raises(TypeError, match="method must be a Method, its name"):
        tidefast.Reservoir(3)
    with pytest.raises(ValueError, match="style must be one of 'model', 'vgg19'"):
        tidefast.Reservoir(style="resnet")
    with pytest.raises(ValueError, match="buffer must be a whole number of at least 16"):
        tidefast.Reservoir(buffer=8)
    with pytest.raises(ValueError, match="Reservoir needs source images, unlabelled"):
        tidefast.adapt(network(), tidefast.Reservoir())
    assert "EATA" in tidefast.Reservoir("eata").needs_source
    with pytest.raises(ValueError, match=r"feature maps \[batch, channels"):
        adapter(style=lambda images: [images.mean(0)])


def test_a_preparation_is_saved_and_belongs_to_its_settings(tmp_path):
    path, method = tmp_path / "prepared", tidefast.Reservoir("eata", source_styles=10, batch_size=16)
    tidefast.prepare(network(), method, SOURCE).save(path)
    adapted = tidefast.adapt(network(), method, source=path)
    assert sorted(adapted.constants) == ["fisher", "source_style", "style_threshold"]
    assert torch.equal(adapted(IMAGES[0]), tidefast.adapt(network(), method, source=SOURCE)(IMAGES[0]))
    other = tidefast.Reservoir(methods.EATA(source_samples=9), source_styles=10, batch_size=16)
    for wrong in (other, tidefast.Reservoir("eata", source_styles=10, batch_size=16, style=pixels)):
        with pytest.raises(SnapshotError, match="other settings"):
            tidefast.adapt(network(), wrong, source=path)
