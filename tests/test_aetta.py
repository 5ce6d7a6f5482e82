"""AETTA: its estimate and its rule against a plain restatement, and what it leaves alone."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import recorded
import tidefast
from tidefast import models, resets, streams
from tidefast.probes.dropout import stages_of
from tidefast.testing import small_network

SGD = functools.partial(torch.optim.SGD, lr=0.2, momentum=0.9)
NEVER = resets.AETTA(lowest=0.0, fall=1.0)


@dataclass
class PlainAETTA:
    """Tent + AETTA as published, over a list of tensors and a network taken apart; slow and obvious."""

    net: nn.Module
    rate: float = 0.4
    lowest: float = 20.0
    fall: float = 2.0
    steps: int = 0
    average: float | None = None
    memory: list[float] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)

    def __post_init__(self):
        self.net.train()
        self.parameters = [
            parameter
            for module in self.net.modules()
            if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm))
            for parameter in module.parameters()
        ]
        self.source, self.optimizer = copy.deepcopy(self.net.state_dict()), SGD(self.parameters)

    def drop(self, activations: Tensor) -> Tensor:
        mask = torch.rand(activations.shape, generator=self.generator) >= self.rate
        return torch.where(mask, activations, 0.0) / (1 - self.rate)

    def dropout_pass(self, images: Tensor) -> Tensor:
        if isinstance(self.net, nn.Sequential):  # no stages: in front of the classifier
            return self.net[-1](self.drop(self.net[:-1](images)))
        tokens = self.net.embed(images).flatten(2).transpose(1, 2)
        for block in self.net.blocks:
            tokens = self.drop(block(tokens))
        return self.net.head(self.net.last_norm(tokens).mean(1))

    def __call__(self, images: Tensor) -> Tensor:
        self.steps += 1
        self.generator = torch.Generator().manual_seed(self.steps ^ 0xAE77A)
        logits = self.net(images)
        with torch.no_grad():
            passes = torch.stack([self.dropout_pass(images).softmax(1) for _ in range(10)])
        wrong = 1.0 - float((passes.argmax(2) == logits.argmax(1)).double().mean())
        mean = passes.mean((0, 1))
        error = wrong / (float(-(mean * mean.log()).sum()) / math.log(10)) ** 3
        error = max(0.0, min(1 - 1 / 10, error))
        self.average = (wrong if self.average is None else self.average) * 0.6 + error * 0.4
        self.optimizer.zero_grad()
        (-(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()).backward()
        self.optimizer.step()
        accuracy = 100 * (1 - self.average)
        self.estimates.append(accuracy)
        self.memory.append(accuracy)
        fallen = len(self.memory) >= 10 and sum(self.memory[-5:]) / 5 + self.fall < sum(self.memory[-10:-5]) / 5
        self.resets.append(float(accuracy < self.lowest or fallen))
        if self.resets[-1]:
            self.net.load_state_dict(self.source)
            self.memory, self.optimizer = [], SGD(self.parameters)
        return logits.detach()


@pytest.mark.parametrize(("lowest", "fall"), [(0.2, 0.02), (0.0, 0.005), (0.7, 1.0)])
@pytest.mark.parametrize("name", recorded.NETWORKS)
def test_it_equals_the_published_rule(name, lowest, fall):
    plain = PlainAETTA(recorded.network(name), lowest=100 * lowest, fall=100 * fall)
    policy, history = resets.AETTA(lowest=lowest, fall=fall), tidefast.History()
    adapter = tidefast.adapt(recorded.network(name), "tent", reset=policy, optimizer=SGD, callbacks=[history])
    for images in recorded.stream(name)[:40]:
        assert torch.allclose(adapter(images), plain(images), atol=1e-9)
    estimates = [100 * record.measurements["estimated_accuracy"] for record in history]
    assert estimates == pytest.approx(plain.estimates, abs=1e-9)
    assert [record.reset_fraction for record in history] == plain.resets


def test_both_triggers_were_compared():
    fired = {}
    for lowest, fall in ((0.0, 0.005), (0.7, 1.0)):
        plain = PlainAETTA(recorded.network("conv-11"), lowest=100 * lowest, fall=100 * fall)
        for images in recorded.stream("conv-11")[:40]:
            plain(images)
        fired[lowest] = sum(plain.resets)
    assert min(fired.values()) >= 1
    assert max(fired.values()) < 40


@pytest.mark.parametrize("method", ["tent", "roid", "rmt", "cotta"])
def test_where_it_does_not_reset_nothing_is_different(method):
    images = torch.rand(4, 8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    network, answers = small_network("attention"), []
    for policy in ("never", NEVER):
        adapter = tidefast.adapt(network, method, reset=policy, source=_source(method))
        answers.append([adapter(batch) for batch in images])
    assert all(torch.equal(a, b) for a, b in zip(*answers, strict=True))


def _source(method: str):
    if method != "rmt":
        return None
    generator = torch.Generator().manual_seed(5)
    return torch.rand(32, 3, 32, 32, generator=generator), torch.arange(32) % 10


@pytest.mark.parametrize(("norm", "passes"), [("attention", 10), ("batch", 1)])
def test_dropout_in_front_of_the_classifier_costs_one_pass(norm, passes):
    adapter = tidefast.adapt(small_network(norm), "tent", reset=NEVER)
    images, counted = torch.rand(8, 3, 32, 32), []
    adapter(images)
    with adapter.network.module.register_forward_hook(lambda *_: counted.append(None)):
        adapter(images)
    assert len(counted) == 1 + passes


def test_stages_are_those_of_the_published_networks(torchvision):
    for depth in (18, 50):
        model = getattr(torchvision.models, f"resnet{depth}")()
        last = [len(getattr(model, f"layer{number}")) - 1 for number in (1, 2, 3, 4)]
        assert stages_of(model) == [f"layer{number}.{block}" for number, block in zip((1, 2, 3, 4), last, strict=True)]


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("mobilenet_v2", ["features.3", "features.8", "features.13", "features.18"]),
        ("vit_b_16", [f"encoder.layers.encoder_layer_{number}" for number in (2, 5, 8, 11)]),
        ("vgg11", []),
    ],
)
def test_stages_of_other_networks(torchvision, name, stages):
    assert stages_of(getattr(torchvision.models, name)()) == stages


def test_the_rate_follows_the_number_of_classes():
    assert [resets.AETTA()._rate(classes) for classes in (2, 10, 100, 200, 1000)] == [0.4, 0.4, 0.3, 0.3, 0.2]
    assert resets.AETTA(dropout=0.7)._rate(10) == 0.7


def test_the_estimate_falls_with_the_accuracy_and_the_average_outlives_the_reset():
    stream = streams.make("drift", part="stream", seed=3, batch=32, steps=60)
    adapter = tidefast.adapt(models.load("bundled-resnet"), "eta", reset="aetta", optimizer="sgd:lr=0")
    for number in range(4):
        adapter(stream[number].images)
    healthy = adapter.last.measurements["estimated_accuracy"]
    assert healthy > 0.4
    values = adapter.network.arena.values
    adapter.network.arena.assign(values + torch.randn(values.shape, generator=torch.Generator().manual_seed(0)))
    fired = 0
    while not adapter.last.reset_fraction:
        fired += 1
        adapter(stream[4 + fired].images)
        assert fired <= 12
    assert adapter.last.measurements["estimated_accuracy"] < healthy - 0.2
    assert torch.equal(adapter.network.arena.values, adapter.network.arena.source)
    assert adapter.state["reset"].number("error") == pytest.approx(1 - adapter.last.measurements["estimated_accuracy"])
    assert len(adapter.state["reset"].tensor("past")) == 0
