"""Reset policies, ASR above all, against a plain restatement of the paper's equations."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import recorded
import tidefast
from recorded import NETWORKS
from tidefast import methods, resets
from tidefast.core import losses

SGD = functools.partial(torch.optim.SGD, lr=0.02, momentum=0.9)


CONV, TOKEN = NETWORKS


def network() -> nn.Module:
    return recorded.network(CONV)


def stream(steps: int) -> Tensor:
    return recorded.stream(CONV)[:steps]


@dataclass
class PlainASR:
    """Tent + ASR, written straight from the paper's equations over a list of tensors; slow and obvious."""

    net: nn.Module
    alpha0: float = 0.6
    mu0: float = 0.15
    lambda0: float = 50.0
    r0: float = 0.5
    lambda_r: float = 1.0
    fisher: str = "unsupervised"
    accumulator_init: str = "first"
    source_stats: str = "batch"
    phi: float = 0.0
    steps: int = 0
    fractions: list[float] = field(default_factory=list)

    def __post_init__(self):
        self.layers = [module for module in self.net.modules() if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm))]
        self.source_net = copy.deepcopy(self.net)
        (self.source_net.eval if self.source_stats == "running" else self.source_net.train)()
        self.net.train()
        self.parameters = [p for layer in self.layers for p in (layer.weight, layer.bias)]
        self.source = [p.detach().clone() for p in self.parameters]
        self.threshold = self.start = -math.log(self.alpha0 * 10)
        self.sums = self.zeros(), self.zeros()
        zero = self.accumulator_init == "zero"
        self.bars: tuple[list[Tensor], list[Tensor]] | None = (self.zeros(), self.zeros()) if zero else None
        self.restart_optimizer()

    def zeros(self) -> list[Tensor]:
        return [torch.zeros_like(p) for p in self.parameters]

    def restart_optimizer(self) -> None:
        self.optimizer = SGD(self.parameters)

    def __call__(self, images: Tensor) -> Tensor:
        logits = self.net(images)
        unsupervised = losses.entropy(logits).mean()
        penalty = 0.0
        if self.bars is not None:
            weight = self.lambda0 * self.phi**2
            penalty = weight * sum(
                (f * (p - t) ** 2).sum() for f, t, p in zip(*self.bars, self.parameters, strict=True)
            )
        measured = unsupervised if self.fisher == "unsupervised" else unsupervised + penalty
        gradients = torch.autograd.grad(measured, self.parameters, retain_graph=True)
        for index, gradient in enumerate(gradients):
            self.sums[0][index] += gradient**2
            self.sums[1][index] += self.parameters[index].detach()
        self.optimizer.zero_grad()
        (unsupervised + penalty).backward()
        self.optimizer.step()
        self.steps += 1
        with torch.no_grad():
            mean = logits.mean(0).softmax(0)
            concentration = float((mean * mean.log()).sum())
            self.phi = float((self.source_net(images).argmax(1) != logits.argmax(1)).double().mean())
            momentum = self.mu0 * self.phi + 1 - self.mu0
            if concentration > self.threshold:
                self.reset(min(1.0, self.r0 + self.lambda_r * (concentration - self.threshold)))
            else:
                self.fractions.append(0.0)
                self.threshold = momentum * self.threshold + (1 - momentum) * concentration
        return logits.detach()

    def reset(self, fraction: float) -> None:
        self.fractions.append(fraction)
        means = [[total / self.steps for total in totals] for totals in self.sums]
        if self.bars is None:
            self.bars = (means[0], means[1])
        else:
            self.bars = tuple(
                [0.9 * old + 0.1 * new for old, new in zip(bar, mean, strict=True)]
                for bar, mean in zip(self.bars, means, strict=True)
            )
        kept = len(self.layers) - math.floor(fraction * len(self.layers) + 0.5)
        for parameter, source in list(zip(self.parameters, self.source, strict=True))[2 * kept :]:
            parameter.copy_(source)
        self.sums, self.steps, self.threshold = (self.zeros(), self.zeros()), 0, self.start
        self.restart_optimizer()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"fisher": "total"},
        {"accumulator_init": "zero"},
        {"source_stats": "running"},
        {"fisher": "total", "accumulator_init": "zero", "source_stats": "running"},
        {"mu0": 0.9, "lambda_r": 20.0, "r0": 0.2},
    ],
    ids=str,
)
def test_asr_equals_the_papers_equations(name, switches):
    plain = PlainASR(recorded.network(name), **switches)
    settings = {"alpha0": 0.6, "lambda0": 50.0, "lambda_r": 1.0, **switches}
    policy = resets.ASR.paper(**settings) if len(switches) == 3 and "fisher" in switches else resets.ASR(**settings)
    history = tidefast.History()
    adapter = tidefast.adapt(recorded.network(name), "tent", reset=policy, optimizer=SGD, callbacks=[history])
    for images in recorded.stream(name)[:80]:
        assert torch.allclose(adapter(images), plain(images), atol=1e-9)
    assert [record.reset_fraction for record in history] == pytest.approx(plain.fractions, abs=1e-9)
    resets_seen = sum(fraction > 0 for fraction in plain.fractions)
    assert 2 <= resets_seen < 60  # else nothing was compared


def test_the_three_parts_of_the_adjustment_are_recorded():
    history = tidefast.History()
    policy = resets.ASR(alpha0=0.6, mu0=0.3, lambda0=4.0)
    adapter = tidefast.adapt(network(), "tent", reset=policy, optimizer=SGD, callbacks=[history])
    for images in stream(30):
        adapter(images)
    records = list(history)
    assert records[0].threshold == pytest.approx(-math.log(6.0))
    assert records[0].penalty == 0.0
    assert any(record.inconsistency > 0 for record in records)
    for before, after in itertools.pairwise(records):
        assert after.penalty == pytest.approx(4.0 * before.inconsistency**2)
        assert before.momentum == pytest.approx(0.3 * before.inconsistency + 0.7)
        if before.reset_fraction:
            assert after.threshold == records[0].threshold
            assert before.concentration > before.threshold
        else:
            expected = before.momentum * before.threshold + (1 - before.momentum) * before.concentration
            assert after.threshold == pytest.approx(expected)


def test_a_reset_clears_the_methods_memory_and_the_optimiser_but_not_the_recovered_knowledge():
    adapter = tidefast.adapt(
        network(), methods.ETA(entropy_margin=1.1, similarity_margin=2.0), reset=resets.ASR(alpha0=0.999), optimizer=SGD
    )
    for images in stream(30):
        adapter(images)
        if adapter.last.reset_fraction:
            break
    assert adapter.last.reset_fraction
    states = adapter.state
    assert states["method"]["memory"] is None
    assert not adapter.optimizer.state
    assert states["reset"]["steps"] == 0
    assert not states["reset"].tensor("fisher_sum").any()
    assert states["reset"].tensor("fisher").any()


def test_selective_resets_never_touch_the_source_that_a_full_reset_returns_to():
    adapter = tidefast.adapt(network(), "tent", reset=resets.ASR(alpha0=0.999, lambda_r=0.0), optimizer=SGD)
    before = adapter.network.arena.source.clone()
    kept = []
    for images in stream(30):
        adapter(images)
        if adapter.last.reset_fraction:
            kept.append((adapter.network.arena.values != before).nonzero().max().item())
    assert kept
    first_layers = adapter.network.arena.layers[1].stop
    assert max(kept) < first_layers  # of five layers the deepest three (half, rounded up) are the source's again
    adapter.reset()
    assert torch.equal(adapter.network.arena.values, before)


def test_the_released_semantics_move_roids_anchor_and_leave_the_live_parameters():
    adapter = tidefast.adapt(
        network(), methods.ROID(consistency=False), reset=resets.ASR.reference(alpha0=0.999), optimizer=SGD
    )
    for images in stream(30):
        adapter(images)
        if adapter.last.reset_fraction:
            break
    arena = adapter.network.arena
    anchor = adapter.state["method"].tensor("anchor")
    cut = arena.cut(adapter.last.reset_fraction, "tensor", "ceil-kept")
    assert torch.equal(anchor[:cut], arena.values[:cut])
    assert torch.equal(anchor[cut:], arena.source[cut:])
    assert not torch.equal(arena.values[cut:], arena.source[cut:])


def test_a_method_without_an_anchor_is_reset_live_under_the_released_semantics():
    adapter = tidefast.adapt(network(), "tent", reset=resets.ASR.reference(alpha0=0.999, r0=1.0), optimizer=SGD)
    for images in stream(30):
        adapter(images)
        if adapter.last.reset_fraction:
            break
    assert torch.equal(adapter.network.arena.values, adapter.network.arena.source)


def test_presets():
    assert resets.ASR.for_resnet50() == resets.ASR()
    vit = resets.ASR.for_vit(r0=0.4)
    assert (vit.alpha0, vit.mu0, vit.lambda0, vit.r0, vit.lambda_r) == (5e-4, 1e-3, 5.0, 0.4, 0.1)
    default, paper, reference = resets.ASR(), resets.ASR.paper(), resets.ASR.reference()
    switches = ("target", "unit", "fisher", "accumulator_init", "source_stats")
    assert [getattr(default, name) for name in switches] == ["live", "layer", "unsupervised", "first", "batch"]
    assert [getattr(paper, name) for name in switches] == ["live", "layer", "total", "zero", "running"]
    assert [getattr(reference, name) for name in switches] == ["anchor", "tensor", "unsupervised", "first", "batch"]
    assert reference.rounding == "ceil-kept"


def test_without_recovery_no_fisher_is_kept():
    adapter = tidefast.adapt(network(), "tent", reset=resets.ASR(lambda0=0.0))
    adapter(stream(1)[0])
    assert set(adapter.state["reset"]) == {"threshold", "inconsistency", "steps"}


def test_rdumb_counts_every_batch_also_those_without_a_selected_sample():
    nothing = methods.ETA(entropy_margin=1e-9)
    history = tidefast.History()
    adapter = tidefast.adapt(network(), nothing, reset=resets.Periodic(every=3), callbacks=[history])
    for images in stream(7):
        adapter(images)
    assert [record.step for record in history if record.reset_fraction == 1.0] == [3, 6]
    assert all(record.selected == 0 for record in history)


def test_rdumb_starts_over_from_the_source_in_everything_but_its_count():
    whole = tidefast.adapt(network(), methods.CMF(consistency=False), reset=resets.Periodic(every=4), optimizer=SGD)
    fresh = tidefast.adapt(network(), methods.CMF(consistency=False), optimizer=SGD)
    images = stream(7)
    for batch in images[:4]:
        whole(batch)
    for batch in images[4:]:
        assert torch.equal(whole(batch), fresh(batch))


THRESHOLD = 0.45


def test_confidence_resets_any_method_when_reliable_samples_become_too_certain():
    history = tidefast.History()
    policy = resets.Confidence(threshold=THRESHOLD, margin=1.0)
    adapter = tidefast.adapt(network(), "tent", reset=policy, callbacks=[history], optimizer=SGD)
    averages = []
    average = None
    for images in stream(60):
        entropy = losses.entropy(adapter(images))
        reliable = entropy[entropy < math.log(10)].mean().item()
        average = reliable if average is None else 0.9 * average + 0.1 * reliable
        averages.append(average)
        if average < THRESHOLD:
            average = None
    fired = [record.reset_fraction == 1.0 for record in history]
    assert fired == [value < THRESHOLD for value in averages]
    assert any(fired)
    assert not all(fired)


@dataclass(frozen=True)
class KeepsThenGoesBack(resets.Reset):
    @property
    def keeps(self) -> bool:
        return True

    def observe(self, step, state) -> resets.Verdict:
        if step.number == 4:
            return resets.Verdict(fraction=1.0, cut=0, target="kept" if step.kept is not None else "live")
        return resets.Verdict(keeps=step.number == 2)


def test_what_is_kept_comes_back_with_all_that_the_method_has_laid_out_like_the_parameters():
    """A teacher is again what it was then."""
    adapter = tidefast.adapt(network(), "cotta:restore=0", reset=KeepsThenGoesBack(), optimizer="sgd:lr=0.1")
    seen = []
    for images in stream(4):
        adapter(images)
        seen.append((adapter.network.arena.values.clone(), adapter.state["method"].tensor("teacher").clone()))
    assert not torch.equal(seen[2][0], seen[1][0])
    assert torch.equal(seen[3][0], seen[1][0])
    assert torch.equal(seen[3][1], seen[1][1])
    adapter.reset()
    adapter(stream(1)[0])
    assert adapter.state["kept"]["kept_parameters"] is None


def test_what_was_kept_comes_back_also_where_the_methods_own_rule_resets_in_the_same_step():
    method = "sar:reset_constant=100,entropy_margin=1.1"
    adapter = tidefast.adapt(network(), method, reset=KeepsThenGoesBack(), optimizer="sgd:lr=0.1")
    for images in stream(4):
        adapter(images)
        assert adapter.last.reset_fraction == 1.0
    kept = adapter.state["kept"].tensor("kept_parameters")
    assert not torch.equal(kept, adapter.network.arena.source)
    assert torch.equal(adapter.network.arena.values, kept)
