"""What is promised of answers: a hard budget whatever happens, and a test with a few labels that is rarely wrong."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tidefast
from tidefast import resets
from tidefast.core.state import Field, State
from tidefast.resets.guard.evidence import Evidence
from tidefast.testing import check_adapter, small_network

CLASSES = 4


def one_hot(classes: list[int]) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(classes), CLASSES).float()


def within(differing: list[bool], budget: float) -> bool:
    """Whether of the first n answers at most floor(budget n) differ, for every n."""
    return all(count <= math.floor(budget * n) for n, count in enumerate(accumulate(differing), 1))


# -- the budget -------------------------------------------------------------------------------------------------


@given(
    st.floats(0.0, 1.0),
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1, max_size=12),
        ),
        max_size=12,
    ),
)
def test_the_budget_holds_at_every_moment_whatever_is_answered(budget, calls):
    guard = resets.Guard(budget=budget)
    state = State([*guard.promise_fields(), Field("lost", float)])
    given_answers, references, counted = [], [], []
    for counts, pairs in calls:
        own, other = one_hot([a for a, _ in pairs]), one_hot([b for _, b in pairs])
        before = dict(state)
        answers = guard.answer(own, lambda other=other: other, state, counts=counts)
        assert counts or dict(state) == before
        picked = answers.argmax(1).tolist()
        assert all(answer in pair for answer, pair in zip(picked, pairs, strict=True))
        given_answers += picked
        references += [b for _, b in pairs]
        counted += [counts] * len(pairs)
    differing = [a != b for a, b in zip(given_answers, references, strict=True)]
    assert within(differing, budget)
    # For every labelling: where the labels are the reference's own answers, the adversary's best choice.
    for n in range(1, len(differing) + 1):
        right = sum(a == b for a, b in zip(given_answers[:n], references[:n], strict=True))
        assert right >= n - math.floor(budget * n)
    own_calls = [d for d, counts in zip(differing, counted, strict=True) if counts]
    assert within(own_calls, budget)
    if budget:
        assert state.number("overruled") == sum(own_calls)


@given(st.integers(1, 200), st.floats(0.01, 1.0))
def test_the_whole_budget_is_spent_where_all_answers_differ(n, budget):
    guard = resets.Guard(budget=budget)
    state = State([*guard.promise_fields(), Field("lost", float)])
    guard.answer(one_hot([0] * n), lambda: one_hot([1] * n), state, counts=True)
    assert state.number("overruled") == math.floor(budget * n)


def wild(**promises) -> tidefast.Adapter:
    """An adapter whose policy resets it now and then."""
    torch.manual_seed(0)
    guard = resets.Guard(**resets.Guard.quick, **promises)
    return tidefast.adapt(small_network(), "tent", reset=guard, optimizer="sgd:lr=0.1", window=4)


def disturb(adapter: tidefast.Adapter, seed: int) -> None:
    """The adapted parameters become nonsense."""
    arena = adapter.network.arena
    arena.assign(arena.source + torch.randn(arena.source.shape, generator=torch.Generator().manual_seed(seed)))


def differences(adapter: tidefast.Adapter, images: Tensor) -> list[bool]:
    """For which images an adapting call gives another answer than the reference, in the same company."""
    session, asked = adapter._session, images
    if len(images) < adapter.gather and session.recent is not None:
        fresh = session.fresh if torch.isfinite(images).all() else 0
        asked = torch.cat([session.recent, images])[-max(adapter.window, fresh + len(images)) :]
    with adapter.network.taking(asked):
        reference = adapter.network.source_logits(asked.nan_to_num(0.0, 0.0, 0.0))[-len(images) :].argmax(1)
    return (adapter(images).argmax(1) != reference).tolist()


def test_the_budget_holds_for_batches_single_images_unusable_ones_and_across_files(tmp_path):
    generator = torch.Generator().manual_seed(1)
    batches = [torch.rand(size, 3, 16, 16, generator=generator) for size in [8, 3, *[1] * 9, 8, 8, 1, 1, 5, 16] * 2]
    batches[5] = batches[5] * torch.nan
    batches[11][0, 0, 0, 0] = torch.inf
    fired, unusable = 0, 0
    for budget in (0.0, 0.1, 0.37):
        adapter, differing = wild(budget=budget), []
        for number, images in enumerate(batches):
            disturb(adapter, number)
            differing += differences(adapter, images)
            fired += adapter.last.reset_fraction > 0
            unusable += adapter.last.nonfinite > 0
            if number == 14:
                adapter.save(tmp_path / "state.safetensors")
                adapter = wild(budget=budget)
                adapter.load(tmp_path / "state.safetensors")
        assert within(differing, budget)
        assert sum(differing) >= 0.5 * budget * len(differing)  # else nothing was tried
    assert fired
    assert unusable == 6


def test_without_a_budget_far_more_answers_differ():
    adapter, differing = wild(), []
    for number, images in enumerate(torch.rand(8, 8, 3, 16, 16, generator=torch.Generator().manual_seed(1))):
        disturb(adapter, number)
        differing += differences(adapter, images)
    assert np.mean(differing) > 0.5


def test_only_a_reset_by_hand_starts_a_new_count():
    adapter = wild(budget=0.2)
    images = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    while adapter.last is None or not adapter.last.reset_fraction:
        adapter(images)
    assert adapter.state["reset"].number("answered") == 8 * adapter.step
    assert adapter.last.measurements["overruled"] <= 0.2
    adapter.reset()
    adapter(images)
    assert adapter.state["reset"].number("answered") == 8


@pytest.mark.parametrize(("promise", "passes"), [({}, 1), ({"budget": 0.05}, 2), ({"alpha": 0.05}, 2)])
def test_a_promise_costs_one_pass_and_none_costs_nothing(promise, passes):
    guard = resets.Guard(belief=0.0, asked=1000, eagerness=1, **promise)
    adapter = tidefast.adapt(small_network(), "tent", reset=guard)
    images, counted = torch.rand(8, 3, 16, 16), []
    for _ in range(2):
        adapter(images)
    with adapter.network.module.register_forward_hook(lambda *_: counted.append(None)):
        adapter(images)
    assert len(counted) == passes
    assert set(adapter.last.measurements) == {
        "rate",
        "in_doubt",
        *(["overruled"] if "budget" in promise else []),
        *(["label_evidence", "label_evidence_needed"] if "alpha" in promise else []),
    }


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("promise", [{"budget": 0.2}, {"alpha": 0.1}, {"budget": 0.2, "alpha": 0.1}], ids=str)
def test_promises_are_kept_by_conformant_adapters(promise, norm):
    def make() -> tidefast.Adapter:
        torch.manual_seed(0)
        guard = resets.Guard(**resets.Guard.quick, **promise)
        return tidefast.adapt(small_network(norm), "tent", reset=guard, optimizer="sgd:lr=0.05", window=8)

    check_adapter(make)


# -- labels -----------------------------------------------------------------------------------------------------


def simulated(labelled: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """For streams of labels [streams, labels], a second time and all at once: how often who answers changed, and after
    how many labels first (the number of labels where never)."""
    streams, labels = labelled.shape
    wealth, balance, weight = np.ones(streams), np.ones(streams), np.full(streams, 2.0)
    changes, first = np.zeros(streams, int), np.full(streams, labels)
    for number in range(labels):
        outcome = np.where(changes % 2 == 0, 1, -1) * labelled[:, number]
        told = outcome != 0
        wealth = wealth * (1 + np.clip(balance / weight, 0, 0.9) * outcome)
        balance, weight = np.where(told, 0.99 * balance + outcome, balance), np.where(told, 0.99 * weight + 1, weight)
        crossed = wealth >= 1 / (6 * alpha / (np.pi * (changes + 1)) ** 2)
        first = np.where(crossed & (changes == 0), number + 1, first)
        wealth, balance, weight = (
            np.where(crossed, start, value) for start, value in ((1, wealth), (1, balance), (2, weight))
        )
        changes = changes + crossed
    return changes, first


def drawn(better: float, worse: float, streams: int, labels: int, seed: int = 0) -> np.ndarray:
    draws = np.random.default_rng(seed).random((streams, labels))
    return np.where(draws < better, 1, np.where(draws < better + worse, -1, 0))


def test_evidence_equals_its_simulation():
    for seed, (better, worse) in enumerate([(0.6, 0.2), (0.2, 0.6), (0.4, 0.4)]):
        labelled = drawn(better, worse, 20, 300, seed)
        labelled[:, 150:] *= -1  # what was better becomes worse
        changes, first = simulated(labelled, 0.1)
        for stream, ours, when in zip(labelled.tolist(), changes, first, strict=True):
            states = list(accumulate(stream, lambda e, d: e.after(d, 0.1), initial=Evidence()))
            assert states[-1].trial - 1 == ours
            assert next((n for n, state in enumerate(states) if state.trial > 1), len(stream)) == when


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
@pytest.mark.parametrize(("better", "worse"), [(0.5, 0.5), (0.1, 0.1), (0.3, 0.5)])
def test_where_adapting_is_never_better_it_answers_with_at_most_alpha(alpha, better, worse):
    changes, _ = simulated(drawn(better, worse, 4000, 500), alpha)
    assert np.mean(changes > 0) <= alpha


def test_the_error_holds_when_the_stream_drifts_and_the_labels_come_in_runs():
    """The null does not ask for independent labels: each may depend on those before, as long as none favours us."""
    draws = np.random.default_rng(3).random((4000, 600))
    rate = 0.2 + 0.6 * (np.sin(np.arange(600) / 40) > 0)  # how often they tell anything
    labelled = np.where(draws < rate / 2, 1, np.where(draws < rate, -1, 0))
    stopped = np.cumsum(labelled, 1) >= 12  # an opponent who stops labelling when it looks good for us
    labelled = np.where(np.cumsum(stopped, 1) > 1, 0, labelled)
    assert np.mean(simulated(labelled, 0.05)[0] > 0) <= 0.05


def test_a_wrong_return_is_as_rare():
    """Once the adapted network answers, for good reason, it goes on: the mirror process has its own share of alpha."""
    changes, _ = simulated(drawn(0.7, 0.1, 2000, 1000), 0.05)
    assert (changes >= 1).all()
    assert np.mean(changes > 1) <= 0.05


@pytest.mark.parametrize(("better", "labels"), [(0.9, 20), (0.75, 70), (0.65, 260)])
def test_power_how_many_disagreements_must_be_labelled(better, labels):
    _, first = simulated(drawn(better, 1 - better, 2000, 400), 0.05)
    assert np.median(first) <= labels


def test_harm_after_gain_brings_the_reference_back():
    labelled = np.concatenate([drawn(0.8, 0.2, 1000, 300), drawn(0.2, 0.8, 1000, 300, seed=1)], axis=1)
    changes, _ = simulated(labelled, 0.05)
    assert np.mean(changes == 2) > 0.95


def opposed(alpha: float) -> tuple[tidefast.Adapter, Tensor, Tensor, Tensor]:
    """An adapter far from its source, images on which the two disagree, and the answers of both."""
    adapter = wild(alpha=alpha)
    images = torch.rand(32, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    adapter(images)
    disturb(adapter, 0)
    own, other = adapter.network(images).argmax(1), adapter.network.source_logits(images).argmax(1)
    assert (own != other).sum() >= 12
    return adapter, images, own, other


def test_labels_decide_who_answers_and_change_it_back(tmp_path):
    adapter, images, own, other = opposed(0.05)
    assert torch.equal(adapter.predict(images).argmax(1), other)
    told = adapter.feedback(images, own)
    assert (told.serves, told.changed, told.labels) == ("adapted", True, 32)
    assert told.better == int((own != other).sum())
    assert told.worse == 0
    assert torch.equal(adapter.predict(images).argmax(1), own)
    adapter.save(tmp_path / "state.safetensors")
    again = wild(alpha=0.05)
    again.load(tmp_path / "state.safetensors")
    assert torch.equal(again.predict(images).argmax(1), own)
    told = [again.feedback(images, other) for _ in range(3)]
    assert told[-1].serves == "reference"
    assert sum(each.changed for each in told) == 1
    assert torch.equal(again.predict(images).argmax(1), other)
    again.reset()
    assert again.state == {} or again.state["reset"]["trial"] == 1


def test_feedback_changes_neither_parameters_nor_steps_and_is_whole_or_not_at_all():
    adapter, images, own, _ = opposed(0.05)
    values, step, record = adapter.network.arena.values.clone(), adapter.step, adapter.last
    before = dict(adapter.state["reset"])
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 9\], got 0 to 10"):
        adapter.feedback(images[:2], [0, 10])
    with pytest.raises(ValueError, match="labels must be 32 classes, one for each image"):
        adapter.feedback(images, own[:5])
    with pytest.raises(TypeError, match="labels must be whole numbers"):
        adapter.feedback(images, own.float())
    assert dict(adapter.state["reset"]) == before
    told = adapter.feedback(images[:4], own[:4].tolist())
    assert told.labels == 4
    assert torch.equal(adapter.network.arena.values, values)
    assert (adapter.step, adapter.last) == (step, record)


def test_other_policies_say_what_takes_labels():
    adapter = tidefast.adapt(small_network(), "tent", reset="asr")
    with pytest.raises(ValueError, match=r"'asr' as given learns nothing from labels.*Guard\(alpha=0.05\)"):
        adapter.feedback(torch.rand(2, 3, 16, 16), [0, 1])


def test_streams_of_a_fleet_take_labels_each_for_itself():
    fleet = tidefast.Fleet(small_network(), "tent", reset="guard:alpha=0.05", optimizer="sgd:lr=30", window=4)
    images = torch.rand(32, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    for name in ("a", "b"):
        for _ in range(3):
            fleet[name](images)
    told = fleet["a"].feedback(images, [1] * 32)
    assert told.labels == 32
    assert fleet["b"].feedback(images[:1], [0]).evidence <= 1.5
    assert fleet["a"].step == 3
