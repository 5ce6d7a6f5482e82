"""COME, LAW and PALM do what their sheets say, step by step, against plain formulas in float64."""

from __future__ import annotations

import dataclasses
import functools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import recorded
import tidefast
from tidefast import methods, resets
from tidefast.core import losses
from tidefast.testing import CHECKS, check_adapter, small_network

SGD = functools.partial(torch.optim.SGD, lr=0.1)


def mirror(images: Tensor) -> Tensor:
    """An augmentation without randomness."""
    return (0.9 * images + 0.05).flip(3)


def images(seed: int = 0, count: int = 16) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed)).double()


def gradient_of(loss: Tensor, net: nn.Module) -> Tensor:
    names = tidefast.core.normalization.affine_names(net)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [net.get_parameter(name) for name in names])])


def flat(adapter: tidefast.Adapter) -> Tensor:
    return adapter.network.arena.values.clone()


# -- COME -----------------------------------------------------------------------------------------------------


def opinion_entropy_by_masses(logits: Tensor) -> Tensor:
    """By the definition: evidence e^z, mass K = C for what nothing speaks for."""
    evidence, classes = logits.exp(), logits.shape[1]
    total = evidence.sum(1, keepdim=True) + classes
    masses = torch.cat([evidence / total, classes / total], 1)
    return -(masses * masses.log()).sum(1)


def spread_logits(seed: int = 0) -> Tensor:
    return 5 * torch.randn(8, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_opinion_entropy_is_that_of_beliefs_and_uncertainty():
    logits = spread_logits()
    assert torch.allclose(losses.opinion_entropy(logits), opinion_entropy_by_masses(logits), rtol=1e-12)


def test_its_gradient_has_no_part_along_the_logits():
    logits = spread_logits().requires_grad_()
    (found,) = torch.autograd.grad(losses.opinion_entropy(logits).sum(), logits)
    (plain,) = torch.autograd.grad(opinion_entropy_by_masses(logits).sum(), logits)
    direction = functional.normalize(logits.detach(), dim=1)
    along = (plain * direction).sum(1, keepdim=True)
    assert along.abs().min() > 1e-3  # else this test shows nothing
    assert torch.allclose(found, plain - along * direction, atol=1e-12)


def test_logits_of_length_zero_and_huge_ones_are_finite():
    logits = torch.tensor([[0.0, 0.0, 0.0], [200.0, -50.0, 0.0], [1e4, 1e4, -1e4]], requires_grad=True)
    entropy = losses.opinion_entropy(logits)
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert torch.isfinite(entropy).all()
    assert torch.isfinite(gradient).all()
    assert entropy[2].item() == pytest.approx(math.log(2))


def test_tent_with_come_descends_the_mean_opinion_entropy():
    torch.manual_seed(0)
    net = small_network("layer").double()
    adapter = tidefast.adapt(net, "tent", objective="come", optimizer=SGD)
    expected = flat(adapter) - 0.1 * gradient_of(losses.opinion_entropy(net(images())).mean(), net)
    adapter(images())
    assert torch.allclose(flat(adapter), expected)


@pytest.mark.parametrize("method", ["eta", "eata"])
def test_eta_with_come_selects_and_weighs_by_opinion_entropy_and_remembers_softmax(method):
    net, batch = recorded.network("token-12"), recorded.stream("token-12")[0]
    logits, margin = net(batch), 0.0115 * math.log(10)
    entropy = losses.opinion_entropy(logits)
    chosen = entropy < margin
    assert 0 < chosen.sum() < (losses.entropy(logits) < margin).sum()  # else this test shows nothing
    loss = (torch.exp(margin - entropy[chosen].detach()) * entropy[chosen]).mean()
    settings = {"entropy_margin": 0.0115, "similarity_margin": 0.4}
    chosen_method = methods.ETA(**settings) if method == "eta" else methods.EATA(**settings)
    source = None if method == "eta" else batch
    adapter = tidefast.adapt(net, chosen_method, objective="come", optimizer=SGD, source=source)
    adapter(batch)
    assert adapter.last.selected == chosen.sum()
    assert adapter.last.loss == pytest.approx(loss.item())
    # On the first step EATA's pull is zero: the parameters are the source's.
    assert torch.allclose(flat(adapter), adapter.network.arena.source - 0.1 * gradient_of(loss, net))
    assert torch.allclose(adapter.state["method"].tensor("memory"), logits.softmax(1)[chosen].mean(0))


def test_eatas_fisher_is_the_same_with_come():
    net, batch = recorded.network("token-12"), recorded.stream("token-12")[0]
    plain, come = (tidefast.prepare(net, methods.EATA(objective=name), batch) for name in ("entropy", "come"))
    assert torch.equal(plain.tensors["fisher"], come.tensors["fisher"])


def test_roid_with_come_replaces_the_likelihood_ratio_and_nothing_else():
    net, batch = recorded.network("token-12"), recorded.stream("token-12")[0]
    settings = {"source_momentum": 1.0, "augment": mirror}
    adapter = tidefast.adapt(net, methods.ROID(**settings), objective="come", optimizer=SGD)
    logits = net(batch)
    with torch.no_grad():
        probabilities = logits.softmax(1)
        diversity = losses.rescale(1 - losses.cosine_to(torch.full((10,), 0.1).double(), probabilities))
        weights = torch.exp(3 * diversity * losses.rescale(-losses.entropy(logits)))
        kept = diversity >= diversity.mean()
    agreement = losses.symmetric_cross_entropy(logits[kept], net(mirror(batch[kept])))
    loss = (weights[kept] * (opinion_entropy_by_masses(logits[kept]) + agreement)).sum() / len(batch)
    held = (weights[kept] * (losses.opinion_entropy(logits[kept]) + agreement)).sum() / len(batch)
    answer = adapter(batch)
    assert adapter.last.loss == pytest.approx(loss.item())
    assert torch.allclose(flat(adapter), adapter.network.arena.source - 0.1 * gradient_of(held, net))
    assert torch.allclose(answer, methods.ROID().output(logits.detach()))


def test_the_objective_is_a_setting_of_the_method_and_of_its_snapshots(tmp_path):
    net = small_network()
    come = tidefast.adapt(net, "eta", objective="come")
    assert come.method == methods.ETA(objective="come")
    come(torch.rand(16, 3, 16, 16))
    come.save(tmp_path / "state")
    tidefast.adapt(net, methods.ETA(objective="come")).load(tmp_path / "state")
    with pytest.raises(tidefast.SnapshotError, match=r"objective='come' \(here 'entropy'\)"):
        tidefast.adapt(net, "eta").load(tmp_path / "state")


def test_a_method_without_an_objective_says_which_have_one():
    with pytest.raises(ValueError, match=r"LAW has no objective to choose, got objective='come'.*eata, eta, .*tent"):
        tidefast.adapt(small_network(), "law", objective="come")


@pytest.mark.parametrize("make", [methods.Tent, methods.ETA, methods.EATA, methods.ROID])
def test_an_unknown_objective_is_refused(make):
    with pytest.raises(ValueError, match="objective must be one of 'entropy', 'come', got 'margin'"):
        make(objective="margin")


@pytest.mark.parametrize("method", ["tent", "eta", "roid"])
def test_come_keeps_the_promises_of_an_adapter(method):
    assert check_adapter(lambda model: tidefast.adapt(model, method, objective="come", reset="asr")) == list(CHECKS)


# -- LAW and PALM, restated from their sheets: dictionaries of tensors, a new Adam in every step ---------------


class Plain:
    """A network in the hands of plain autograd: batch statistics, convolutions and norm layers adapt."""

    def __init__(self, name: str) -> None:
        self.net = recorded.network(name).eval().requires_grad_(False)
        self.adapted: dict[str, nn.Parameter] = {}
        for path, module in self.net.named_modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean = module.running_var = None
                module.track_running_stats = False
            if isinstance(module, (nn.Conv2d, nn.BatchNorm2d, nn.LayerNorm)):
                for leaf, parameter in module.named_parameters(recurse=False):
                    self.adapted[f"{path}.{leaf}"] = parameter.requires_grad_()

    def clear(self) -> None:
        for parameter in self.adapted.values():
            parameter.grad = None

    def descend(self, loss: Tensor, rates: dict[str, float], weight_decay: float = 0.0) -> None:
        groups = [{"params": [p], "lr": rates[name]} for name, p in self.adapted.items()]
        optimizer = torch.optim.Adam(groups, weight_decay=weight_decay)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def flat(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.adapted.values()])


def consistency(logits: Tensor, views: Tensor) -> Tensor:
    return -(logits.softmax(1) * views.log_softmax(1)).sum(1).mean()


class PlainLAW(Plain):
    def __init__(self, name: str, tau: float, *, stale: bool) -> None:
        super().__init__(name)
        self.tau, self.stale = tau, stale
        self.sums = {name: torch.zeros_like(p) for name, p in self.adapted.items()}

    def __call__(self, batch: Tensor) -> Tensor:
        logits, views = self.net(batch), self.net(mirror(batch))
        if not self.stale:
            self.clear()
        functional.cross_entropy(logits, logits.argmax(1)).backward(retain_graph=True)
        for name, parameter in self.adapted.items():
            self.sums[name] += parameter.grad**2
        values = {name: total.mean().sqrt().item() for name, total in self.sums.items()}
        low, high = min(values.values()), max(values.values())
        rates = {name: 2e-3 * ((v - low) / (high - low + 1e-8)) ** self.tau for name, v in values.items()}
        self.descend(losses.entropy(logits).mean() + 0.01 * 10 * consistency(logits, views), rates)
        return logits.detach()


class PlainPALM(Plain):
    def __init__(self, name: str, limit: float, *, goes_on: bool) -> None:
        super().__init__(name)
        self.limit, self.goes_on = limit, goes_on
        self.average = {name: torch.zeros_like(p) for name, p in self.adapted.items()}
        self.ratios = dict.fromkeys(self.adapted, 0.0)
        self.chosen: list[frozenset[str]] = []

    def __call__(self, batch: Tensor) -> Tensor:
        logits, views = self.net(batch), self.net(mirror(batch))
        self.clear()
        ones = torch.ones_like(logits)
        (-(ones * (logits / 50.0).log_softmax(1)).sum(1)).mean().backward(retain_graph=True)
        if not self.goes_on:
            self.ratios = dict.fromkeys(self.adapted, 0.0)
        chosen = set()
        for name, parameter in self.adapted.items():
            if parameter.grad.abs().sum() <= self.limit:
                chosen.add(name)
                now = (parameter * parameter.grad).abs().detach()
                self.average[name] = 0.3 * self.average[name] + 0.7 * now
                unsteady = (now - self.average[name]).abs()
                self.ratios[name] = ((unsteady + 1e-8) / (self.average[name] + 1e-8)).mean().item()
        self.chosen.append(frozenset(chosen))
        entropy = losses.entropy(logits)
        reliable = entropy[entropy < 0.4]
        loss = 0.01 * 10 * consistency(logits, views) + (reliable.mean() if len(reliable) else 0.0)
        self.descend(loss, {name: 2e-3 * ratio for name, ratio in self.ratios.items()}, weight_decay=1e-3)
        return logits.detach()


def agree(adapter: tidefast.Adapter, plain: Plain, stream: Tensor) -> float:
    """How far the two run apart over a stream, in logits and parameters; fails if nothing was adapted."""
    apart = max((adapter(batch) - plain(batch)).abs().max().item() for batch in stream)
    arena = adapter.network.arena
    assert [span.name for span in arena.tensors] == list(plain.adapted)
    assert (arena.values - arena.source).abs().max() > 1e-3
    return max(apart, (arena.values - plain.flat()).abs().max().item())


@pytest.mark.parametrize("name", recorded.NETWORKS)
@pytest.mark.parametrize(("tau", "stale"), [(1.0, False), (0.6, False), (1.0, True)])
def test_law_is_its_sheet(name, tau, stale):
    method = methods.LAW(learning_rate=2e-3, tau=tau, stale_gradient=stale, augment=mirror)
    adapter = tidefast.adapt(recorded.network(name), method)
    assert agree(adapter, PlainLAW(name, tau, stale=stale), recorded.stream(name)[:8]) < 1e-9


def test_the_stale_gradient_of_laws_code_makes_a_difference():
    adapter = tidefast.adapt(recorded.network("conv-11"), methods.LAW(learning_rate=2e-3, augment=mirror))
    assert agree(adapter, PlainLAW("conv-11", 1.0, stale=True), recorded.stream("conv-11")[:8]) > 1e-4


@pytest.mark.parametrize(("name", "limit"), [("conv-11", 0.16), ("token-12", 0.2)])
@pytest.mark.parametrize("goes_on", [False, True])
def test_palm_is_its_sheet(name, limit, goes_on):
    settings = {"learning_rate": 2e-3, "weight_decay": 1e-3, "sensitivity_momentum": 0.3, "temperature": 50.0}
    method = methods.PALM(**settings, gradient_limit=limit, update_unselected=goes_on, augment=mirror)
    adapter, plain = tidefast.adapt(recorded.network(name), method), PlainPALM(name, limit, goes_on=goes_on)
    stream = recorded.stream(name)[:8]
    assert agree(adapter, plain, stream) < 1e-9
    assert len(set(plain.chosen)) > 1, "the selection never changed: this test shows nothing"
    other = tidefast.adapt(recorded.network(name), dataclasses.replace(method, update_unselected=not goes_on))
    for batch in stream:
        other(batch)
    assert (flat(other) - plain.flat()).abs().max() > 1e-4


def test_palm_without_a_sure_sample_steps_on_consistency_alone():
    net, batch = recorded.network("conv-11"), recorded.stream("conv-11")[0]
    method = methods.PALM(entropy_margin=0.0, gradient_limit=1e9, augment=mirror)
    adapter = tidefast.adapt(net, method)
    logits = adapter(batch)
    with torch.no_grad():
        views = tidefast.adapt(net, methods.BatchNorm()).predict(mirror(batch))
    assert adapter.last.loss == pytest.approx(0.1 * consistency(logits, views).item())
    assert not torch.equal(flat(adapter), adapter.network.arena.source)


def test_palm_that_selects_nothing_changes_nothing():
    adapter = tidefast.adapt(recorded.network("conv-11"), methods.PALM(gradient_limit=0.0))
    for batch in recorded.stream("conv-11")[:3]:
        adapter(batch)
    assert torch.equal(flat(adapter), adapter.network.arena.source)


@pytest.mark.parametrize(("momentum", "rate"), [(0.5, 1.0), (0.1, 0.1 / 0.9)])
def test_palms_first_rate_is_beta_over_one_minus_beta(momentum, rate):
    method = methods.PALM(sensitivity_momentum=momentum, gradient_limit=1e9, temperature=1.0)
    adapter = tidefast.adapt(recorded.network("conv-11"), method)
    adapter(recorded.stream("conv-11")[0])
    rates = adapter.state["method"].tensor("rates")
    assert rates.median().item() == pytest.approx(rate, rel=1e-2)  # the 1e-8 shows where sensitivities are tiny


def test_law_gives_the_most_important_tensor_the_full_rate_and_the_least_none():
    method = methods.LAW(learning_rate=1e-2)
    adapter = tidefast.adapt(recorded.network("conv-11"), method)
    adapter(recorded.stream("conv-11")[0])
    arena, importance = adapter.network.arena, adapter.state["method"].tensor("importance")
    moved = (arena.values - arena.source).abs()
    least, most = arena.tensors[int(importance.argmin())], arena.tensors[int(importance.argmax())]
    assert moved[least.start : least.stop].max() == 0
    assert moved[most.start : most.stop].max().item() == pytest.approx(1e-2, rel=1e-3)
    assert adapter.optimizer.state == {}
    assert adapter.state["method"]["before"] is None  # what one step needs is not in the next snapshot


# -- both -----------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("make", [methods.LAW, methods.PALM])


@BOTH
def test_convolutions_and_norms_adapt_and_the_head_does_not(make):
    names = {span.name for span in tidefast.adapt(small_network("layer"), make()).network.arena.tensors}
    assert {"embed.weight", "embed.bias", "norms.0.weight", "norms.2.bias"} <= names
    assert not any(name.startswith(("head", "mixers")) for name in names)


@BOTH
def test_a_network_without_convolutions_and_norms_is_refused(make):
    with pytest.raises(ValueError, match="adapts convolutions and normalisation layers, and this network has neither"):
        tidefast.adapt(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), make())


@BOTH
def test_a_given_optimiser_is_kept_and_only_its_changes_are_scaled(make):
    net, batch = recorded.network("conv-11"), recorded.stream("conv-11")[0]
    momentum = functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
    adapter = tidefast.adapt(net, make(augment=mirror), optimizer=momentum)
    adapter(batch)
    arena = adapter.network.arena
    velocity = adapter.optimizer.state[arena.parameter]["momentum_buffer"]
    rates = adapter.method.rates(arena, adapter.state["method"])
    assert rates.max() > 0
    assert torch.allclose(arena.values, arena.source - 1e-3 * rates * velocity, atol=1e-12)


@BOTH
def test_without_consistency_there_is_no_second_view(make):
    def never(images: Tensor) -> Tensor:
        raise AssertionError("the augmentation was called")

    method = make(consistency_weight=0.0, augment=never)
    adapter = tidefast.adapt(recorded.network("conv-11"), method)
    adapter(recorded.stream("conv-11")[0])
    assert adapter.last.loss is not None
    assert method.passes(1.0) == (1.0, 2.0)
    assert make().passes(1.0) == (2.0, 3.0)


@BOTH
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_passes_counts_the_forwards_and_backwards(make, norm):
    net = small_network(norm)
    calls = {"forward": 0, "backward": 0}
    head = next(module for module in reversed(list(net.modules())) if isinstance(module, nn.Linear))
    adapter = tidefast.adapt(net, make())
    inside = adapter.network.module.get_submodule(next(n for n, m in net.named_modules() if m is head))
    inside.register_forward_hook(lambda *_: calls.__setitem__("forward", calls["forward"] + 1))
    inside.register_full_backward_hook(lambda *_: calls.__setitem__("backward", calls["backward"] + 1))
    adapter(torch.rand(8, 3, 16, 16))
    assert (calls["forward"], calls["backward"]) == adapter.method.passes(1.0)


def test_a_partial_reset_keeps_what_palm_knows_of_the_kept_layers_and_restarts_law():
    stream = recorded.stream("conv-11")
    policy = resets.ASR(alpha0=0.99, r0=0.5, lambda_r=0.0)  # resets half of the layers at once
    palm = tidefast.adapt(recorded.network("conv-11"), methods.PALM(gradient_limit=1e9), reset=policy)
    palm(stream[0])
    cut = palm.network.arena.cut(0.5)
    assert palm.last.reset_fraction == 0.5
    for name in ("sensitivity", "rates"):
        assert palm.state["method"].tensor(name)[:cut].min() >= 0
        assert palm.state["method"].tensor(name)[:cut].max() > 0
        assert palm.state["method"].tensor(name)[cut:].max() == 0
    law = tidefast.adapt(recorded.network("conv-11"), "law", reset=policy)
    law(stream[0])
    assert law.state["method"].tensor("importance").max() == 0
    assert torch.equal(law.network.arena.values[cut:], law.network.arena.source[cut:])
    assert not torch.equal(law.network.arena.values[:cut], law.network.arena.source[:cut])


@pytest.mark.parametrize("method", [methods.LAW(stale_gradient=True), methods.PALM(update_unselected=True)])
def test_the_switches_keep_the_promises_of_an_adapter(method):
    assert check_adapter(lambda model: tidefast.adapt(model, method, reset="asr")) == list(CHECKS)


class Steep(nn.Module):
    """A network whose gradient is finite for bright images, and too large to be squared."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_network()

    def forward(self, batch: Tensor) -> Tensor:
        logits = self.inner(batch)
        return logits + 1e25 * (logits - logits.detach()) if batch.mean() > 1 else logits


def test_a_gradient_too_large_to_square_is_refused_before_it_reaches_the_sums():
    adapter = tidefast.adapt(Steep(), "law")
    adapter(torch.rand(8, 3, 16, 16))
    before, importance = flat(adapter), adapter.state["method"].tensor("importance").clone()
    adapter(torch.rand(8, 3, 16, 16) + 1)
    assert adapter.last.skipped == "non-finite loss or gradient"
    assert torch.equal(flat(adapter), before)
    assert torch.equal(adapter.state["method"].tensor("importance"), importance)


@pytest.mark.parametrize(
    ("make", "classes", "expected"),
    [
        (methods.LAW, 10, {"learning_rate": 1e-3, "tau": 1.0}),
        (methods.LAW, 100, {"learning_rate": 5e-5, "tau": 0.6}),
        (methods.LAW, 1000, {"learning_rate": 2e-4, "tau": 1.0}),
        (methods.PALM, 10, {"learning_rate": 5e-4, "temperature": 50.0, "gradient_limit": 1.0, "weight_decay": 0.0}),
        (methods.PALM, 100, {"temperature": 100.0, "sensitivity_momentum": 0.1, "weight_decay": 5e-4}),
        (methods.PALM, 1000, {"learning_rate": 5e-5, "temperature": 1000.0, "gradient_limit": 0.3}),
    ],
)
def test_published_settings(make, classes, expected):
    method = make.for_classes(classes, consistency_weight=0.02)
    assert {name: getattr(method, name) for name in expected} == expected
    assert method.consistency_weight == 0.02


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: methods.LAW(tau=0.0), "tau"),
        (lambda: methods.LAW(learning_rate=-1.0), "learning_rate"),
        (lambda: methods.LAW(consistency_weight=-0.1), "consistency_weight"),
        (lambda: methods.PALM(temperature=0.0), "temperature"),
        (lambda: methods.PALM(sensitivity_momentum=1.0), "sensitivity_momentum"),
        (lambda: methods.PALM(gradient_limit=-1.0), "gradient_limit"),
        (lambda: methods.PALM(weight_decay=-1.0), "weight_decay"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(make, name):
    with pytest.raises(ValueError, match=name):
        make()
