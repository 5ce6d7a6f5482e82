"""What a method declares and hands from hook to hook: forward to loss, where it starts, what its anchor is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import tidefast
from tidefast.core.state import Field
from tidefast.methods import Forward, Method, Objective, Source, Tent
from tidefast.probes.features import Features
from tidefast.resets import Never, Verdict
from tidefast.testing import check_adapter, small_network

IMAGES = torch.rand(6, 8, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Centroids(Source):
    """Gradient-free: answers by the distance to class means of features, which the stream moves."""

    momentum: float = 0.5

    def configure(self, model, statistics):
        Features.of(model)
        return ()

    def fields(self, network, num_classes):
        width = 16
        return [Field("centroids", lambda: torch.eye(num_classes, width))]

    def forward(self, network, images, state):
        logits, features = Features.of(network.module).along(network, images)
        return Forward(logits - torch.cdist(features, state.tensor("centroids")), for_loss=features)

    def loss(self, step, state):
        features, predicted = step.from_forward(Tensor), step.logits.argmax(1)
        centroids = state.tensor("centroids").index_copy(0, predicted, self.momentum * features)
        return Objective(loss=None, selected=len(features), updates={"centroids": centroids}, step=False)


def passes_of(adapter, call) -> int:
    count = []
    handle = adapter.network.module.register_forward_hook(lambda *_: count.append(1))
    call()
    handle.remove()
    return len(count)


def test_a_method_without_gradients_runs_the_network_once_in_a_call():
    adapter = tidefast.adapt(small_network(), Centroids(), num_classes=10)
    answers = []
    for images in IMAGES:
        before = adapter.predict(images)
        assert passes_of(adapter, lambda images=images: answers.append(adapter(images))) == 1
        assert torch.equal(answers[-1], before)
        assert adapter.last.selected == 8
    assert passes_of(adapter, lambda: adapter.predict(IMAGES[0])) == 1
    check_adapter(lambda model: tidefast.adapt(model, Centroids(), reset="asr"))


@dataclass(frozen=True)
class Careful(Tent):
    """Does more in an adapting call than an answer needs."""

    calls: ClassVar[list[str]] = []

    def forward(self, network, images, state):
        self.calls.append("forward")
        return Forward(network(images), for_loss="from the forward")

    def predict(self, network, images, state):
        self.calls.append("predict")
        return network(images)

    def loss(self, step, state):
        self.calls.append(step.from_forward(str))
        return super().loss(step, state)


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_forward_is_for_adapting_and_predict_for_answers_alone(context):
    Careful.calls.clear()
    adapter = tidefast.adapt(small_network(), Careful(), num_classes=10, window=2)
    with context():
        adapter(IMAGES[0])
        adapter.predict(IMAGES[0])
        adapter(IMAGES[0][:1])  # waits for another
        adapter(torch.full_like(IMAGES[0], torch.nan))
    assert Careful.calls == ["forward", "from the forward", "predict", "predict", "predict"]


def test_predict_is_forward_where_a_method_says_nothing_else():
    @dataclass(frozen=True)
    class Doubled(Tent):
        def forward(self, network, images, state):
            return 2.0 * network(images)

    adapter, plain = (tidefast.adapt(small_network().eval(), method, num_classes=10) for method in (Doubled(), Tent()))
    plain.model.load_state_dict(adapter.model.state_dict())
    assert torch.equal(adapter.predict(IMAGES[0]), 2.0 * plain.predict(IMAGES[0]))
    assert torch.equal(adapter(IMAGES[0]), 2.0 * plain.predict(IMAGES[0]))


def test_a_loss_that_expects_what_forward_did_not_give_is_told():
    @dataclass(frozen=True)
    class Forgetful(Careful):
        forward = Method.forward

    adapter = tidefast.adapt(small_network(), Forgetful())
    with pytest.raises(TypeError, match="forward gave NoneType for the loss, which expects str: return Forward"):
        adapter(IMAGES[0])
    assert adapter.step == 0


@dataclass(frozen=True)
class HalfToAnchor(Never):
    """Moves the anchor of the deeper half in every step."""

    def observe(self, step, state):
        cut = step.network.arena.cut(0.5)
        return replace(super().observe(step, state), fraction=0.5, cut=cut, target="anchor")


@dataclass(frozen=True)
class Tethered(Tent):
    declared: bool = True

    def fields(self, network, num_classes):
        size = len(network.arena)
        return [
            Field("tether", lambda: None, layered=True, shape=(size,), anchor=self.declared),
            Field("anchor", lambda: 3.0, lifetime="stream"),
        ]


def test_a_reset_moves_the_anchor_that_is_declared_whatever_its_name():
    adapter = tidefast.adapt(small_network(), Tethered(), reset=HalfToAnchor(), num_classes=10)
    adapter(IMAGES[0])
    arena, state = adapter.network.arena, adapter.state["method"]
    cut = arena.cut(0.5)
    assert torch.equal(state.tensor("tether"), torch.cat([arena.values[:cut], arena.source[cut:]]))
    assert not torch.equal(arena.values[cut:], arena.source[cut:])
    assert state["anchor"] == 3.0


def test_without_a_declared_anchor_the_parameters_are_reset():
    adapter = tidefast.adapt(small_network(), Tethered(declared=False), reset=HalfToAnchor(), num_classes=10)
    adapter(IMAGES[0])
    arena, state = adapter.network.arena, adapter.state["method"]
    cut = arena.cut(0.5)
    assert torch.equal(arena.values[cut:], arena.source[cut:])
    assert not torch.equal(arena.values[:cut], arena.source[:cut])
    assert state["tether"] is None
    assert state["anchor"] == 3.0


@dataclass(frozen=True)
class Started(Tent):
    @property
    def needs_source(self):
        return "source images"

    def prepare(self, network, source):
        return {"start": network.arena.source + 5.0, "warm": network.arena.source + 0.5}

    def start(self, constants):
        return constants["warm"]


def test_a_method_starts_where_it_says_and_no_constant_means_more_than_its_name():
    adapter = tidefast.adapt(small_network(), Started(), source=IMAGES[0])
    scale = torch.ones(8)
    assert torch.equal(adapter.network.arena.values[:8], scale + 0.5)
    adapter(IMAGES[0])
    adapter.reset()
    assert torch.equal(adapter.network.arena.values[:8], scale + 0.5)


def test_a_policy_gets_what_it_watched():
    seen = []

    @dataclass(frozen=True)
    class Watcher(Never):
        def watching(self, network):
            return torch.profiler.record_function("the pass")

        def begin(self, step, state, watched):
            seen.append(watched)

        def observe(self, step, state):
            return Verdict()

    tidefast.adapt(small_network(), "tent", reset=Watcher())(IMAGES[0])
    assert [type(watched) for watched in seen] == [torch.profiler.record_function]
