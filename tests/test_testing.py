"""The conformance suite finds adapters that break a promise."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

import tidefast
from tidefast.methods import Objective, Tent
from tidefast.resets import Never
from tidefast.testing import CHECKS, check_adapter

_leak: list[torch.Tensor] = []


@dataclass(frozen=True)
class HiddenState(Tent):
    """Remembers something that it did not declare."""

    seen: list[int] = field(default_factory=list, compare=False)

    def loss(self, step, state):
        self.seen.append(1)
        objective = super().loss(step, state)
        return Objective(objective.loss * len(self.seen), objective.selected)


@dataclass(frozen=True)
class WritesToTheCaller(Tent):
    def after_step(self, step, state):
        frozen = next(p for p in step.network.module.parameters() if not p.requires_grad)
        frozen.mul_(1.01)


@dataclass(frozen=True)
class AnswersWithNaN(Tent):
    def output(self, logits):
        return logits / 0.0


@dataclass(frozen=True)
class AnswersAfterTheUpdate(Tent):
    def output(self, logits):
        return logits + 1.0 if torch.is_grad_enabled() else logits


@dataclass(frozen=True)
class AnswersOnAnotherScale(Tent):
    def output(self, logits):
        return logits / logits.shape[1]


@dataclass(frozen=True)
class AnswersWithProbabilities(Tent):
    def output(self, logits):
        return logits.softmax(1)


@dataclass(frozen=True)
class Leaks(Tent):
    def after_step(self, step, state):
        _leak.extend(torch.zeros(1) for _ in range(5))


@dataclass(frozen=True)
class StateInPolicy(Never):
    """Moves the parameters in a way that depends on the time of day, so to speak."""

    count: list[int] = field(default_factory=list, compare=False)

    def observe(self, step, state):
        self.count.append(1)
        step.network.arena.assign(step.network.arena.values + 1e-3 * len(self.count))
        return super().observe(step, state)


@pytest.mark.parametrize(
    ("method", "reset", "broken"),
    [
        (HiddenState(), None, "reset returns to the source"),
        (WritesToTheCaller(), None, "leaves the caller's model alone"),
        (AnswersWithNaN(), None, "answers every batch"),
        (AnswersAfterTheUpdate(), None, "answers every batch"),
        (AnswersOnAnotherScale(), None, "answers are logits"),
        (AnswersWithProbabilities(), None, "answers are logits"),
        (Leaks(), None, "memory stays flat"),
        (Tent(), StateInPolicy(), "resumes bit for bit"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_broken_promise_is_named(method, reset, broken):
    shared = torch.optim.SGD
    with pytest.raises(AssertionError, match=f"^{broken}: "):
        check_adapter(
            lambda model: tidefast.adapt(model, method, reset=reset, optimizer=lambda p: shared(p, lr=0.1)),
            checks=[broken],
        )


def test_a_factory_may_bring_its_own_network_and_images():
    def factory():
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
        return tidefast.adapt(net, "tent", reset="asr")

    images = torch.rand(12, 16, 6, generator=torch.Generator().manual_seed(0))
    assert check_adapter(factory, images=images) == list(CHECKS)
