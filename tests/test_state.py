"""Declared state: what a field may hold, at its start, on load, and as it grows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import tidefast
from tidefast.core.state import Field, State
from tidefast.errors import SnapshotError
from tidefast.methods import Tent
from tidefast.testing import check_adapter, small_network

IMAGES = torch.rand(6, 8, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Remembers(Tent):
    """Keeps the logits of the latest images, at most `capacity` of them, and starts with one row."""

    capacity: int = 400
    declared: int = 400

    def fields(self, network, num_classes):
        return [Field("rows", lambda: torch.zeros(1, num_classes), shape=(range(1, self.declared + 1), num_classes))]

    def loss(self, step, state):
        objective = super().loss(step, state)
        rows = torch.cat([state.tensor("rows"), step.logits.detach()])[-self.capacity :]
        return tidefast.methods.Objective(objective.loss, objective.selected, updates={"rows": rows})


def test_a_field_may_grow_within_the_shape_it_declares_and_is_loaded_as_it_was(tmp_path):
    model = small_network()
    one, two = (tidefast.adapt(model, Remembers(), num_classes=10) for _ in range(2))
    for images in IMAGES[:3]:
        one(images)
    one.save(tmp_path / "state")
    two.load(tmp_path / "state")
    assert two.state["method"].tensor("rows").shape == (25, 10)
    assert torch.equal(one(IMAGES[3]), two(IMAGES[3]))
    assert torch.equal(one.state["method"].tensor("rows"), two.state["method"].tensor("rows"))


def test_what_outgrows_its_declaration_is_refused_where_it_happens_and_nothing_is_changed():
    adapter = tidefast.adapt(small_network(), Remembers(declared=9), num_classes=10)
    adapter(IMAGES[0])
    before = adapter.state["method"].tensor("rows").clone()
    with pytest.raises(ValueError, match=r"state 'rows' cannot hold a tensor of shape \(17, 10\): it declares \(range"):
        adapter(IMAGES[1])
    assert adapter.last.step == 1
    assert torch.equal(adapter.state["method"].tensor("rows"), before)


def test_what_was_saved_under_a_wider_declaration_is_not_loaded(tmp_path, monkeypatch):
    adapter = tidefast.adapt(small_network(), Remembers(), num_classes=10)
    for images in IMAGES[:2]:
        adapter(images)
    adapter.save(tmp_path / "state")
    narrower = [Field("rows", lambda: torch.zeros(1, 10), shape=(range(1, 10), 10))]
    monkeypatch.setattr(Remembers, "fields", lambda *_: narrower)
    with pytest.raises(SnapshotError, match=r"method.rows has shape \(17, 10\), expected \(range\(1, 10\), 10\)"):
        adapter.load(tmp_path / "state")


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.zeros(4, 3), torch.zeros(2, 3, 1)])
def test_a_field_takes_only_tensors_of_its_declared_shape(wrong):
    state = State([Field("mean", lambda: None, shape=(2, 3)), Field("free", lambda: None, shape=(2, ...))])
    state["mean"] = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"state 'mean' cannot hold a tensor of shape .* it declares \(2, 3\)"):
        state["mean"] = wrong
    assert torch.equal(state.tensor("mean"), torch.ones(2, 3))
    state["mean"] = None
    state["free"] = torch.zeros(2, 3, 1)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (range(2), 3), (2, 3, ...), (3, ...)])
def test_a_field_that_starts_as_another_shape_than_it_declares_is_refused_at_once(shape):
    fits = shape == (2, 3, ...)
    fields = [Field("mean", lambda: torch.zeros(2, 3), shape=shape)]
    if fits:
        assert State(fields).misfit("mean", torch.zeros(2, 3, 5)) is None
        return
    with pytest.raises(ValueError, match=r"'mean' starts as a tensor of shape \(2, 3\), and declares"):
        State(fields)


def test_a_declared_shape_counts_also_where_the_field_starts_as_a_tensor():
    state = State(
        [Field("rows", lambda: torch.zeros(2, 3), shape=(range(2, 5), 3)), Field("one", lambda: torch.ones(2))]
    )
    assert state.misfit("rows", torch.zeros(4, 3)) is None
    assert state.misfit("rows", torch.zeros(5, 3)) == "has shape (5, 3), expected (range(2, 5), 3)"
    assert state.misfit("rows", torch.zeros(4, 2)) is not None
    assert state.misfit("rows", torch.zeros(4)) is not None
    assert state.misfit("rows", torch.zeros(4, 3, dtype=torch.float64)) is not None
    assert state.misfit("one", torch.ones(3)) == "has shape (3,), expected (2,)"


def test_the_state_of_an_adapter_is_to_be_looked_at():
    adapter = tidefast.adapt(small_network(), "eta", reset="asr")
    assert adapter.state == {}
    adapter(IMAGES[0])
    assert set(adapter.state) == {"method", "reset"}
    view = adapter.state["reset"]
    before = view.number("steps")
    with pytest.raises(TypeError, match="does not support item assignment"):
        view["steps"] = 7
    adapter(IMAGES[1])
    assert view.number("steps") == before + 1


def test_a_bounded_memory_that_is_still_filling_is_no_leak():
    assert check_adapter(lambda model: tidefast.adapt(model, Remembers()), checks=["memory stays flat"])


@pytest.mark.parametrize("declared", [100, 399])
def test_a_memory_that_outgrows_its_declaration_is_a_leak(declared):
    with pytest.raises(ValueError, match=r"state 'rows' cannot hold a tensor of shape"):
        check_adapter(
            lambda model: tidefast.adapt(model, Remembers(declared=declared, capacity=10_000)),
            checks=["memory stays flat"],
            images=torch.rand(12, 24, 3, 32, 32),
        )


def test_a_memory_without_a_bound_is_a_leak():
    @dataclass(frozen=True)
    class Unbounded(Remembers):
        def fields(self, network, num_classes):
            return [Field("rows", lambda: torch.zeros(1, num_classes), shape=(...,))]

    with pytest.raises(AssertionError, match=r"^memory stays flat: numbers held grew from"):
        check_adapter(lambda model: tidefast.adapt(model, Unbounded(capacity=10_000)), checks=["memory stays flat"])
