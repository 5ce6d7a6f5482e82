"""The memory bank, RoTTA and PeTTA, against plain torch code and the checks of their papers."""

from __future__ import annotations

import copy
import functools
import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import tidefast
from tidefast import methods
from tidefast.core.state import State, StateView
from tidefast.methods.shared.memory import MemoryBank
from tidefast.probes.held_statistics import HeldStatistics
from tidefast.resets.base import Verdict
from tidefast.testing import small_network

ADAM = functools.partial(torch.optim.Adam, lr=0.01)
IMAGES = torch.rand(6, 8, 3, 16, 16, generator=torch.Generator().manual_seed(1)).double()
SOURCE = torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(2)).double()


def flip(images: torch.Tensor) -> torch.Tensor:
    return images.flip(3)


RoTTA = functools.partial(methods.RoTTA, augment=flip, every=8)
PeTTA = functools.partial(methods.PeTTA, augment=flip)


def network(norm: str = "batch") -> nn.Module:
    """Float64, with a head that predicts several classes and statistics that are not those of the images."""
    torch.manual_seed(0)
    net = small_network(norm).double().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.05, 0.3)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
        if isinstance(module, nn.Linear) and module.out_features == 10:
            nn.init.normal_(module.weight, std=3.0)
    return net


def adapter(method: methods.Method, norm: str = "batch", **options) -> tidefast.Adapter:
    options = {"source": SOURCE} | options if method.needs_source else options
    return tidefast.adapt(network(norm), method, optimizer=ADAM, **options)


def state_of(adapted: tidefast.Adapter) -> StateView:
    return adapted.state["method"]


# -- the bank ------------------------------------------------------------------------------------------------------


class PlainBank:
    """One list per class, as the paper tells it."""

    def __init__(self, capacity: int, classes: int, time_weight: float = 1.0, uncertainty_weight: float = 1.0) -> None:
        self.lists: list[list[dict]] = [[] for _ in range(classes)]
        self.capacity, self.weights = capacity, (time_weight, uncertainty_weight)

    def items(self) -> list[dict]:
        return [item for members in self.lists for item in members]

    def score(self, item: dict) -> float:
        timeliness = 1.0 / (1.0 + math.exp(-item["age"] / self.capacity))
        return self.weights[0] * timeliness + self.weights[1] / math.log(len(self.lists)) * item["uncertainty"]

    def insert(self, image, label: int, uncertainty: float) -> None:
        new = {"image": image, "label": label, "uncertainty": uncertainty, "age": 0}
        own = self.lists[label]
        if len(own) < self.capacity / len(self.lists) and len(self.items()) < self.capacity:
            own.append(new)
        else:
            longest = max(map(len, self.lists))
            large = [members for members in self.lists if len(members) == longest]
            among = large if len(own) < self.capacity / len(self.lists) else [own]
            victim = None
            for item in (item for members in among for item in members):
                if victim is None or self.score(item) >= self.score(victim):
                    victim = item
            if victim is not None and self.score(victim) > self.score(new):
                self.lists[victim["label"]] = [item for item in self.lists[victim["label"]] if item is not victim]
                self.lists[label].append(new)
        for item in self.items():
            item["age"] += 1


def contents(state: State) -> list[tuple]:
    """(class, age, uncertainty, image), the youngest first."""
    kept = state.tensor("bank_classes") >= 0
    columns = [state.tensor(f"bank_{name}")[kept].tolist() for name in ("ages", "classes", "uncertainties")]
    return sorted(zip(*columns, state.tensor("bank_images")[kept].flatten().tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(
    classes=st.sampled_from([2, 3, 10, 100]),
    capacity=st.integers(1, 12),
    weights=st.sampled_from([(1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.3, 2.0)]),
    batches=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    levels=st.sampled_from([1, 3, 1000]),  # few levels of uncertainty: many equal scores
    seed=st.integers(0, 1000),
)
def test_the_bank_holds_what_lists_by_class_would(classes, capacity, weights, batches, levels, seed):
    generator = torch.Generator().manual_seed(seed)
    state, plain, number = State(MemoryBank.fields(capacity)), PlainBank(capacity, classes, *weights), 0
    for size in batches:
        images = torch.arange(number, number + size).float()[:, None]
        labels = torch.randint(classes, (size,), generator=generator).tolist()
        uncertainties = (torch.randint(levels, (size,), generator=generator) / 1024).tolist()
        bank = MemoryBank(state, classes, *weights)
        bank.offer(images, labels, uncertainties)
        for image, label, uncertainty in zip(images, labels, uncertainties, strict=True):
            plain.insert(image.item(), label, uncertainty)
        state.update(bank.updates())
        number += size
        expected = [(item["age"], item["label"], item["uncertainty"], item["image"]) for item in plain.items()]
        assert contents(state) == sorted(expected)
        assert len(bank) == len(bank.images) == len(bank.ages) == len(expected) <= capacity


def test_with_many_classes_all_images_are_of_different_ones():
    state, generator = State(MemoryBank.fields(64)), torch.Generator().manual_seed(0)
    for _ in range(4):
        bank = MemoryBank(state, 1000)
        labels = torch.randint(100, (64,), generator=generator).tolist()
        bank.offer(torch.rand(64, 1), labels, torch.rand(64, generator=generator).tolist())
        state.update(bank.updates())
        held = [label for label in state.tensor("bank_classes").tolist() if label >= 0]
        assert len(held) == len(set(held))


def test_a_batch_leaves_the_state_as_it_was_and_the_bank_shares_no_memory_with_it():
    state, images = State(MemoryBank.fields(4)), torch.ones(3, 2)
    bank = MemoryBank(state, 10)
    bank.offer(images, [1, 2, 3], [0.1, 0.2, 0.3])
    assert state["bank_images"] is None
    state.update(bank.updates())
    images.zero_()
    before = state.tensor("bank_images").clone()
    later = MemoryBank(state, 10)
    later.offer(images, [4, 5, 1], [0.0, 0.0, 0.0])
    assert torch.equal(state.tensor("bank_images"), before)
    assert torch.equal(before[:3], torch.ones(3, 2))
    assert later.images.sum() < before.sum()


def test_images_of_another_size_are_an_error_that_changes_nothing():
    adapted = adapter(RoTTA())
    adapted(IMAGES[0])
    before = state_of(adapted).tensor("bank_ages").clone()
    with pytest.raises(ValueError, match=r"shape \(3, 8, 8\), those remembered of \(3, 16, 16\)"):
        adapted(IMAGES[1][..., :8, :8])
    assert torch.equal(state_of(adapted).tensor("bank_ages"), before)
    assert adapted.step == 1
    adapted.reset()
    assert adapted(IMAGES[1][..., :8, :8]).shape == (8, 10)


def test_a_batch_enters_the_bank_in_a_few_milliseconds():
    state, generator, seconds = State(MemoryBank.fields(64)), torch.Generator().manual_seed(0), []
    images = torch.rand(64, 3, 32, 32)
    for _ in range(12):
        labels = torch.randint(1000, (64,), generator=generator).tolist()
        uncertainties = torch.rand(64, generator=generator).tolist()
        started = time.process_time()
        bank = MemoryBank(state, 1000)
        bank.offer(images, labels, uncertainties)
        state.update(bank.updates())
        seconds.append(time.process_time() - started)
    assert sorted(seconds)[3] < 0.01


# -- steps written out by hand -------------------------------------------------------------------------------------


class RobustNorm(nn.Module):
    """BatchNorm whose statistics move before they are used, in train mode; plain autograd."""

    def __init__(self, layer: nn.BatchNorm2d, momentum: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.momentum = layer.weight, layer.bias, layer.eps, momentum
        self.register_buffer("mean", layer.running_mean.clone())
        self.register_buffer("variance", layer.running_var.clone())

    def forward(self, inputs):
        mean, variance = self.mean, self.variance
        if self.training:
            batch_mean = inputs.mean((0, 2, 3))
            batch_variance = (inputs - batch_mean.view(1, -1, 1, 1)).pow(2).mean((0, 2, 3))
            mean = (1 - self.momentum) * mean + self.momentum * batch_mean
            variance = (1 - self.momentum) * variance + self.momentum * batch_variance
            self.mean, self.variance = mean.detach(), variance.detach()
        mean, variance, weight, bias = (v.view(1, -1, 1, 1) for v in (mean, variance, self.weight, self.bias))
        return (inputs - mean) / torch.sqrt(variance + self.eps) * weight + bias


def robust(momentum: float = 0.05) -> nn.Sequential:
    return nn.Sequential(
        *(RobustNorm(layer, momentum) if isinstance(layer, nn.BatchNorm2d) else layer for layer in network())
    )


def affine(net: nn.Module) -> list[nn.Parameter]:
    return [p for module in net if isinstance(module, RobustNorm) for p in (module.weight, module.bias)]


def flat(net: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach() for parameter in affine(net)])


def flat_statistics(net: nn.Module) -> torch.Tensor:
    return torch.cat([part for m in net if isinstance(m, RobustNorm) for part in (m.mean, m.variance)])


def cross_entropy(target, logits):
    return -(target.softmax(1) * logits.log_softmax(1)).sum(1)


def symmetric(logits, target):
    return 0.5 * cross_entropy(target, logits) + 0.5 * cross_entropy(logits, target)


def insert_all(bank: PlainBank, images: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    probabilities = logits.softmax(1)
    uncertainty = -(probabilities * (probabilities + 1e-6).log()).sum(1)
    for image, label, value in zip(images, logits.argmax(1).tolist(), uncertainty.tolist(), strict=True):
        bank.insert(image, label, value)
    return torch.stack([item["image"] for item in bank.items()])


def follow(teacher: nn.Module, student: nn.Module, rate: float) -> None:
    with torch.no_grad():
        for slow, fast in zip(affine(teacher), affine(student), strict=True):
            slow.copy_((1 - rate) * slow + rate * fast)


def test_gradients_pass_through_the_batch_part_of_the_statistics():
    plain, held_net = robust(momentum=0.3).train(), network()
    norms = [place for place, module in enumerate(plain) if isinstance(module, RobustNorm)]
    names = [f"{place}.{leaf}" for place in norms for leaf in ("weight", "bias")]
    held = HeldStatistics.install(held_net, names)
    images = [IMAGES[0].clone().requires_grad_() for _ in range(2)]
    with held.moving(held.source, tidefast.probes.held_statistics.exponential(0.3)) as after:
        logits = held_net(images[0])
    expected = plain(images[1])
    torch.testing.assert_close(logits, expected)
    logits.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(images[0].grad, images[1].grad)
    torch.testing.assert_close(after, flat_statistics(plain))
    ours = torch.cat([held_net.get_parameter(name).grad for name in names])
    torch.testing.assert_close(ours, torch.cat([parameter.grad for parameter in affine(plain)]))
    frozen = network()  # the same but with statistics that are constants: other gradients
    detached = IMAGES[0].clone().requires_grad_()
    held = HeldStatistics.install(frozen, names)
    with held.using(after):
        frozen(detached).square().sum().backward()
    assert not torch.allclose(detached.grad, images[0].grad, rtol=1e-3)


@pytest.mark.parametrize("capacity", [64, 6])
def test_rotta_steps_as_written_out_by_hand(capacity):
    adapted = adapter(RoTTA(teacher_momentum=0.9, capacity=capacity))
    student, teacher, bank = robust(), robust(), PlainBank(capacity, 10)
    optimizer = ADAM(affine(student))
    for images in IMAGES[:4]:
        answer = teacher.eval()(images).detach()
        torch.testing.assert_close(adapted.predict(images), answer)
        torch.testing.assert_close(adapted(images), answer)
        remembered = insert_all(bank, images, answer)
        target = teacher.train()(remembered).detach()
        logits = student.train()(remembered.flip(3))
        age = torch.tensor([item["age"] for item in bank.items()]).double() / capacity
        loss = (torch.exp(-age) / (1 + torch.exp(-age)) * cross_entropy(target, logits)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(teacher, student, 0.1)
        assert adapted.last.loss == pytest.approx(loss.item(), rel=1e-9)
        assert adapted.last.selected == len(bank.items())
    state = state_of(adapted)
    torch.testing.assert_close(adapted.network.arena.values, flat(student))
    torch.testing.assert_close(state.tensor("teacher"), flat(teacher))
    torch.testing.assert_close(state.tensor("statistics"), flat_statistics(student))
    torch.testing.assert_close(state.tensor("teacher_statistics"), flat_statistics(teacher))
    assert not torch.allclose(flat_statistics(student), flat_statistics(teacher))
    torch.testing.assert_close(adapted.predict(IMAGES[4]), teacher.eval()(IMAGES[4]).detach())


@pytest.mark.parametrize(("symmetric_loss", "pull_by"), [(False, "cosine"), (True, "cosine"), (False, "l2")])
def test_petta_steps_as_written_out_by_hand(symmetric_loss, pull_by):
    method = PeTTA(teacher_momentum=0.9, symmetric=symmetric_loss, pull_by=pull_by, capacity=20)
    adapted = adapter(method, source=[*SOURCE.split(8)])
    source, initial, student, teacher, bank = network(), robust(), robust(), robust(), PlainBank(20, 10)
    optimizer = ADAM(affine(student))
    with torch.no_grad():
        features, predicted = source[:-1](SOURCE), source(SOURCE).argmax(1)
    means, variances = features.mean(0).repeat(10, 1), features.var(0).repeat(10, 1)
    for label in range(10):
        if (predicted == label).sum() >= 2:
            means[label], variances[label] = features[predicted == label].mean(0), features[predicted == label].var(0)
    prototypes, drifts = means.clone(), []
    for images in IMAGES[:4]:
        with torch.no_grad():
            features, answer = teacher.eval()[:-1](images), teacher(images)
        torch.testing.assert_close(adapted(images), answer)
        remembered = insert_all(bank, images, answer)
        target, anchor = teacher.train()(remembered).detach(), initial.train()(remembered).detach()
        plain = student.train()(remembered)
        logits = student(remembered.flip(3))
        labels = answer.argmax(1)
        present = labels.unique()
        drift = 1 - torch.exp(-((prototypes - means)[present] ** 2 / (variances[present] + 1e-6)).mean()).item()
        for label in present:
            prototypes[label] = 0.95 * prototypes[label] + 0.05 * features[labels == label].mean(0)
        loss = cross_entropy(target, logits).mean()
        if symmetric_loss:
            loss = (0.5 * symmetric(plain, target) + 0.5 * symmetric(logits, target)).mean()
        pairs = list(zip(affine(student), affine(initial), strict=True))
        if pull_by == "cosine":
            distance = torch.stack([-functional.cosine_similarity(a, b.detach(), dim=0) for a, b in pairs]).mean()
        else:
            distance = torch.stack([(a - b.detach()).pow(2).sum() for a, b in pairs]).mean()
        loss = loss + drift * 10.0 * distance + cross_entropy(anchor, logits).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(teacher, student, (1 - drift) * 0.1)
        drifts.append(drift)
        assert adapted.last.loss == pytest.approx(loss.item(), rel=1e-6)
        assert state_of(adapted).number("teacher_rate") == pytest.approx((1 - drift) * 0.1, rel=1e-6)
    state = state_of(adapted)
    assert drifts[0] == 0.0
    assert min(drifts[1:]) > 1e-4
    torch.testing.assert_close(adapted.network.arena.values, flat(student))
    torch.testing.assert_close(state.tensor("teacher"), flat(teacher))
    torch.testing.assert_close(state.tensor("prototypes"), prototypes)
    for name, net in (("statistics", student), ("teacher_statistics", teacher), ("source_statistics", initial)):
        torch.testing.assert_close(state.tensor(name), flat_statistics(net))


# -- what else the papers say --------------------------------------------------------------------------------------


def test_rotta_makes_a_step_when_the_count_of_images_passes_a_multiple():
    adapted = adapter(RoTTA(every=20, teacher_momentum=0.5))
    arena, stepped = adapted.network.arena, []
    for images in [*IMAGES[:5], IMAGES.flatten(0, 1)]:  # 8, 16, 24, 32, 40, and 48 more
        before = arena.values.clone(), state_of(adapted).tensor("teacher").clone() if adapted.step else arena.source
        adapted(images)
        after = arena.values, state_of(adapted).tensor("teacher")
        moved = [not torch.equal(old, new) for old, new in zip(before, after, strict=True)]
        assert moved[0] == moved[1]  # the teacher follows only when the student moved
        stepped.append(moved[0])
        assert adapted.last.selected == (len(bank_classes(adapted)) if moved[0] else 0)
    assert stepped == [False, False, True, False, True, True]
    assert adapted.optimizer.state[arena.parameter]["step"] == 3
    assert state_of(adapted)["count"] == 88 % 20


def bank_classes(adapted: tidefast.Adapter) -> list[int]:
    return [label for label in state_of(adapted).tensor("bank_classes").tolist() if label >= 0]


@pytest.mark.parametrize("method", [RoTTA, PeTTA])
def test_with_momentum_zero_the_sources_statistics_stay(method):
    adapted = adapter(method(statistics_momentum=0.0))
    source = HeldStatistics.of(adapted.network.module).source
    for images in IMAGES[:3]:
        adapted(images)
    state = state_of(adapted)
    for name in (name for name in state if name.endswith("statistics")):
        assert torch.equal(state.tensor(name), source)
    assert not torch.equal(adapted.network.arena.values, adapted.network.arena.source)


def test_a_teacher_that_never_follows_answers_as_the_source_model():
    adapted = adapter(RoTTA(teacher_momentum=1.0, statistics_momentum=0.0))
    plain = network()
    for images in IMAGES:
        torch.testing.assert_close(adapted(images), plain(images).detach())
    assert not torch.equal(adapted.network.arena.values, adapted.network.arena.source)


@pytest.mark.parametrize("norm", ["layer", "group"])
@pytest.mark.parametrize("method", [RoTTA, PeTTA])
def test_networks_without_batchnorm_adapt_scale_and_shift(method, norm):
    adapted = adapter(method(teacher_momentum=0.5), norm)
    before = adapted.predict(IMAGES[0])
    for images in IMAGES:
        adapted(images)
    assert len(state_of(adapted).tensor("statistics")) == 0
    assert not torch.allclose(adapted.predict(IMAGES[0]), before)


def test_petta_takes_the_statistics_of_all_features_for_classes_that_are_rarely_predicted():
    net = network()
    with torch.no_grad():
        net[-1].bias[3] += 100.0  # one class takes all
        features = net[:-1](SOURCE)
    prepared = tidefast.prepare(net, methods.PeTTA(), SOURCE).tensors
    expected = features.mean(0), features.var(0)
    for name, value in zip(("feature_means", "feature_variances"), expected, strict=True):
        torch.testing.assert_close(prepared[name], value.expand(10, -1))
    few = tidefast.prepare(net, methods.PeTTA(source_samples=12), SOURCE.split(8)).tensors
    torch.testing.assert_close(few["feature_variances"][0], features[:12].var(0))
    lone = tidefast.prepare(net, methods.PeTTA(), SOURCE[:1]).tensors
    assert all(torch.isfinite(value).all() for value in lone.values())


def test_petta_says_that_it_needs_source_images():
    with pytest.raises(ValueError, match="PeTTA needs source images, unlabelled"):
        tidefast.adapt(network(), "petta")


def test_the_further_the_features_drift_the_slower_the_teacher_follows():
    rates = []
    for momentum in (1.0, 0.95, 0.5, 0.0):  # of the prototypes: the smaller, the further they went
        adapted = adapter(PeTTA(prototype_momentum=momentum))
        for images in IMAGES[:2]:
            adapted(images)
        rates.append(state_of(adapted).number("teacher_rate"))
    assert rates[0] == pytest.approx(1e-3)
    assert rates[0] > rates[1] > rates[2] > rates[3] > 0.0


# -- resets, resuming, bad batches ---------------------------------------------------------------------------------


class Half(tidefast.resets.Never):
    """Resets the deeper half in the third step."""

    def observe(self, step, state):
        return Verdict(fraction=0.5, cut=step.network.arena.cut(0.5)) if step.number == 3 else Verdict()


@pytest.mark.parametrize("method", [RoTTA, PeTTA])
def test_a_selective_reset_takes_the_same_layers_of_parameters_and_statistics_and_empties_the_memory(method):
    adapted = adapter(method(teacher_momentum=0.5, reset_statistics=True), reset=Half())
    for images in IMAGES[:3]:
        adapted(images)
    arena, state = adapted.network.arena, state_of(adapted)
    source = HeldStatistics.of(adapted.network.module).source
    cut = arena.cut(0.5)
    assert 0 < cut < len(arena)
    statistics = [(state.tensor(name), source) for name in state if name.endswith("statistics")]
    for values, origin in [(arena.values, arena.source), (state.tensor("teacher"), arena.source), *statistics]:
        assert torch.equal(values[cut:], origin[cut:])
        assert not torch.equal(values[:cut], origin[:cut])
    assert bank_classes(adapted) == []
    assert state["bank_images"] is None
    if method is PeTTA:
        assert torch.equal(state.tensor("prototypes"), adapted.constants["feature_means"])
        assert state.number("teacher_rate") == 0.5
    assert len(statistics) == (3 if method is PeTTA else 2)
    adapted(IMAGES[3])
    assert len(bank_classes(adapted)) == 8


@pytest.mark.parametrize("method", [RoTTA, PeTTA])
def test_statistics_may_outlast_the_resets_of_a_policy(method):
    plain, kept = adapter(method()), adapter(method(), reset=Half())
    for images in IMAGES[:3]:
        plain(images)
        kept(images)
    source = HeldStatistics.of(kept.network.module).source
    for name in kept.method.statistics_held:
        assert torch.equal(state_of(kept).tensor(name), state_of(plain).tensor(name))
        assert not torch.equal(state_of(kept).tensor(name), source)
    arena = kept.network.arena
    assert torch.equal(arena.values[arena.cut(0.5) :], arena.source[arena.cut(0.5) :])
    kept.reset()
    kept(IMAGES[0])
    plain.reset()
    plain(IMAGES[0])
    assert torch.equal(kept.predict(IMAGES[1]), plain.predict(IMAGES[1]))


@pytest.mark.parametrize("method", [RoTTA, PeTTA])
def test_after_a_full_reset_the_stream_is_adapted_to_as_the_first_time(method):
    adapted = adapter(method(reset_statistics=True), reset=tidefast.resets.Periodic(every=3))
    first, second = ([adapted(images) for images in IMAGES[:3]] for _ in range(2))
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


@pytest.mark.parametrize("policy", [tidefast.resets.ASR(alpha0=0.97, lambda_r=1.0), tidefast.resets.Periodic(every=4)])
def test_petta_goes_on_with_the_papers_policies(policy, tmp_path):
    """A stream with several resets, interrupted and resumed."""
    whole, parts = (adapter(PeTTA(teacher_momentum=0.9), reset=policy) for _ in range(2))
    stream = [images * (0.5 + 0.1 * turn) for turn in range(3) for images in IMAGES]
    expected = [whole(images) for images in stream]
    found, resets = [], 0
    for images in stream:
        found.append(parts(images))
        resets += parts.last.reset_fraction > 0
        parts.save(tmp_path / "state.safetensors")
        parts = adapter(PeTTA(teacher_momentum=0.9), reset=policy)
        parts.load(tmp_path / "state.safetensors")
    assert resets >= 2
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


@pytest.mark.parametrize("method", [RoTTA, PeTTA])
def test_images_whose_variance_overflows_are_refused(method):
    adapted = tidefast.adapt(
        network().float(), method(), optimizer=ADAM, **({"source": SOURCE.float()} if method is PeTTA else {})
    )
    adapted(IMAGES[0].float())
    before = {name: copy.deepcopy(value) for name, value in state_of(adapted).items()}
    bad = IMAGES[1].float()
    bad[0] = 1e25
    adapted(bad)
    assert adapted.last.skipped == "non-finite loss or gradient"
    for name, value in state_of(adapted).items():
        assert torch.equal(value, before[name]) if isinstance(value, torch.Tensor) else value == before[name]
    adapted(IMAGES[1].float())
    assert adapted.last.skipped is None


def test_the_published_settings():
    assert methods.RoTTA() == methods.RoTTA(
        0.999, False, None, capacity=64, statistics_momentum=0.05, time_weight=1.0, uncertainty_weight=1.0, every=64
    )
    petta = methods.PeTTA()
    assert (petta.pull, petta.pull_by, petta.anchor_weight, petta.prototype_momentum) == (10.0, "cosine", 1.0, 0.95)
    assert (petta.teacher_momentum, petta.symmetric, petta.statistics_momentum) == (0.999, False, 0.05)
    assert methods.PeTTA.for_cifar() == methods.PeTTA(symmetric=True)
    for method, options in ((methods.RoTTA(), {}), (petta, {"source": SOURCE})):
        optimizer = tidefast.adapt(network(), method, **options).optimizer
        assert isinstance(optimizer, torch.optim.Adam)
        assert (optimizer.defaults["lr"], optimizer.defaults["betas"]) == (1e-3, (0.9, 0.999))


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        (methods.RoTTA, {"every": 0}, "every must be a whole number of at least 1"),
        (methods.RoTTA, {"capacity": 0}, "capacity must be a whole number of at least 1"),
        (methods.RoTTA, {"statistics_momentum": 2.0}, r"statistics_momentum must lie in \[0.0, 1.0\]"),
        (methods.PeTTA, {"pull_by": "l1"}, "pull_by must be"),
        (methods.PeTTA, {"pull": -1.0}, "pull must lie in"),
        (methods.PeTTA, {"prototype_momentum": 1.5}, "prototype_momentum must lie in"),
    ],
)
def test_settings_are_checked(method, setting, message):
    with pytest.raises(ValueError, match=message):
        method(**setting)
