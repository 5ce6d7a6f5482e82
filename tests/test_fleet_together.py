"""Several streams in one pass: each as if it were alone, within rounding, and whatever the others do."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import tidefast
from nets import conv_net, token_net
from tidefast import methods, resets
from tidefast.core import losses
from tidefast.core.joint import JointNetwork
from tidefast.core.step import Objective, Views
from tidefast.fleet import joint_step

SIZES = {"a": 4, "b": 7, "c": 1, "d": 2, "e": 4}
"""Images of each stream; those of c and d are gathered."""
STEPS = 5
NAMES = sorted(name for name in methods.base.registry.names() if joint_step.is_plain(methods.base.registry.get(name)))
SETTINGS = {
    "eta": {"entropy_margin": 1.0, "similarity_margin": 0.95},
    "eata": {"entropy_margin": 1.0, "fisher_weight": 1.0},
}
POLICIES: dict[str, resets.Reset] = {
    "never": resets.Never(),
    "periodic": resets.Periodic(every=2),
    "asr": resets.ASR(alpha0=1.2, mu0=0.5),
    "guard": resets.Guard(**resets.Guard.quick),
    "promises": resets.Guard(**resets.Guard.quick, budget=0.3),
    "confidence": resets.Confidence(**resets.Confidence.quick),
    "aetta": resets.base.registry.make("aetta"),
}
Make = Callable[[], nn.Module]


class OwnNorm(nn.Module):
    """A normalisation layer that nobody knows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs / inputs.std((1, 2, 3), keepdim=True) * self.gain[:, None, None]


def with_norm(norm: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def network(make: Make, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().to(dtype).eval()


def images(seed: int, count: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(count, 3, 12, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def batches(step: int, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    return {name: images(100 * step + place, size, dtype) for place, (name, size) in enumerate(SIZES.items())}


def options(name: str, policy: str, model: nn.Module) -> dict:
    kind = methods.base.registry.get(name)
    method = kind(**{**kind.busiest, **SETTINGS.get(name, {})})
    dtype = next(model.parameters()).dtype
    given: dict = {"method": method, "reset": POLICIES[policy], "optimizer": "adam:lr=1e-2", "window": 4}
    if method.needs_source or policy in ("guard", "promises"):
        given["source"] = images(9, 16, dtype)
    return given


@pytest.fixture
def joined(monkeypatch) -> list[int]:
    """How many streams each joint call took together."""
    counts: list[int] = []
    own = joint_step.JointStepper._together

    def counted(self, calls):
        answers = own(self, calls)
        counts.append(len(answers))
        return answers

    monkeypatch.setattr(joint_step.JointStepper, "_together", counted)
    return counts


def same_as_alone(model: nn.Module, given: dict, tolerance: float, steps: int = STEPS) -> tidefast.Fleet:
    """Step a fleet together and lone adapters one by one, and compare all there is."""
    dtype = next(model.parameters()).dtype
    fleet = tidefast.Fleet(model, **given)
    lone = {name: tidefast.adapt(model, **given) for name in SIZES}
    for step in range(steps):
        shown = batches(step, dtype)
        answers = fleet.adapt(shown)
        for name, adapter in lone.items():
            torch.testing.assert_close(answers[name], adapter(shown[name]), rtol=tolerance, atol=tolerance)
            ours, theirs = fleet[name].last, adapter.last
            assert (ours.step, ours.selected, ours.skipped, ours.nonfinite) == (
                *(theirs.step, theirs.selected, theirs.skipped, theirs.nonfinite),
            )
            assert ours.reset_fraction == theirs.reset_fraction
            assert ours.measurements == pytest.approx(theirs.measurements, rel=10 * tolerance, abs=10 * tolerance)
            assert (ours.loss is None) == (theirs.loss is None)
            assert (ours.loss or 0.0) == pytest.approx(theirs.loss or 0.0, rel=10 * tolerance, abs=10 * tolerance)
    for name, adapter in lone.items():
        session, other = fleet._entries[name].session, adapter.leave()
        torch.testing.assert_close(session.values, other.values, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(session.moments, other.moments, rtol=tolerance, atol=tolerance)
        assert session.group == other.group
        assert (session.fresh, session.num_classes) == (other.fresh, other.num_classes)
        assert (session.sliding is None) == (other.sliding is None)
        torch.testing.assert_close(
            tuple(session.sliding or ()), tuple(other.sliding or ()), rtol=10 * tolerance, atol=10 * tolerance
        )
        for owner, state in other.states.items():
            torch.testing.assert_close(
                dict(session.states[owner]), dict(state), rtol=10 * tolerance, atol=10 * tolerance
            )
    return fleet


@pytest.mark.parametrize("make", [conv_net, token_net])
@pytest.mark.parametrize(
    "policy", [pytest.param(name, marks=() if name in ("asr", "guard") else pytest.mark.slow) for name in POLICIES]
)
@pytest.mark.parametrize("name", NAMES)
def test_streams_stepped_together_equal_those_alone(name: str, policy: str, make: Make, joined: list[int]):
    model = network(make)
    same_as_alone(model, options(name, policy, model), 1e-12)
    assert joined == [len(SIZES)] * STEPS


@pytest.mark.parametrize("make", [conv_net, token_net])
@pytest.mark.parametrize("name", NAMES)
def test_single_precision_differs_by_rounding_only(name: str, make: Make, joined: list[int]):
    model = network(make, torch.float32)
    same_as_alone(model, options(name, "asr", model), 1e-5, steps=3)
    assert joined == [len(SIZES)] * 3


def test_the_methods_that_step_together_are_those_that_can():
    assert {"tent", "eta", "eata", "roid", "cmf", "rpl", "deyo", "batchnorm", "source"} <= set(NAMES)
    assert {"alphabatchnorm", "sar", "cotta", "memo"} & set(NAMES) == set()


@pytest.mark.parametrize(
    "norm",
    [
        functools.partial(nn.GroupNorm, 2, 8),
        functools.partial(nn.InstanceNorm2d, 8, affine=True),
        functools.partial(nn.LayerNorm, (8, 10, 10)),
        functools.partial(nn.RMSNorm, (8, 10, 10)),
        functools.partial(nn.BatchNorm2d, 8),
        functools.partial(nn.SyncBatchNorm, 8),
        functools.partial(OwnNorm, 8),
    ],
)
def test_every_normalisation_layer_has_each_streams_own_numbers(norm, joined):
    model = network(lambda: with_norm(norm))
    same_as_alone(model, options("tent", "asr", model), 1e-12)
    assert joined == [len(SIZES)] * STEPS


@pytest.mark.parametrize("name", ["sar", "cotta", "alphabatchnorm"])
def test_other_methods_are_stepped_one_by_one_by_the_same_call(name: str, joined: list[int]):
    model = network(conv_net)
    fleet, adapter = tidefast.Fleet(model, name, reset="asr"), tidefast.adapt(model, name, reset="asr")
    for step in range(3):
        answers = fleet.adapt({"a": images(step, 4), "b": images(50 + step, 4)})
        assert torch.equal(answers["a"], adapter(images(step, 4)))
    assert joined == []


class Mixing(nn.Module):
    """A network in which images meet where nobody expects it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = conv_net()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.inner(images - 5.0 * images.mean(0, keepdim=True))


class Reaching(nn.Module):
    """A network that uses a layer's parameters without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(432), nn.Linear(432, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        norm = self.norm
        return self.head(nn.functional.layer_norm(images.flatten(1), (432,), norm.weight, norm.bias))


class TokensFirst(nn.Module):
    """A network with the images in the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(144), nn.Linear(144, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(images.flatten(2).transpose(0, 1)).mean(0))


@pytest.mark.parametrize("make", [Mixing, Reaching, TokensFirst])
def test_a_network_whose_images_cannot_be_told_apart_is_stepped_one_by_one(make, joined, caplog):
    model = network(make)
    with caplog.at_level(logging.WARNING, "tidefast"):
        same_as_alone(model, options("tent", "never", model), 1e-12)
    assert joined == []
    assert len([record for record in caplog.records if "one by one" in record.message]) == 1


@pytest.mark.parametrize("first", [{"a": images(0, 4), "b": images(1, 1)}, {"a": images(0, 4), "b": images(0, 4)}])
def test_a_pass_of_one_stream_or_of_equal_images_does_not_vouch_for_the_network(first: dict[str, torch.Tensor]):
    model = network(Mixing)
    fleet, adapter = tidefast.Fleet(model, "tent"), tidefast.adapt(model, "tent")
    assert torch.allclose(fleet.adapt(first)["a"], adapter(first["a"]), rtol=1e-12, atol=1e-12)
    answers = fleet.adapt({"a": images(2, 4), "b": images(3, 4)})
    torch.testing.assert_close(answers["a"], adapter(images(2, 4)), rtol=1e-12, atol=1e-12)


def test_unusable_images_of_one_stream_affect_no_other(joined):
    model = network(conv_net)
    fleet, adapter = tidefast.Fleet(model, "tent"), tidefast.adapt(model, "tent")
    for step in range(3):
        bad = images(step, 4)
        bad[1] = torch.nan
        answers = fleet.adapt({"bad": bad, "good": images(10 + step, 4), "also": images(20 + step, 4)})
        torch.testing.assert_close(answers["good"], adapter(images(10 + step, 4)), rtol=1e-12, atol=1e-12)
        assert torch.isfinite(answers["bad"]).all()
        assert fleet["bad"].last.nonfinite == step + 1
    assert joined == [2, 2, 2]


@pytest.mark.parametrize("fault", ["raises", "is nan", "has a nan gradient", "overflows"])
def test_a_failing_loss_of_one_stream_affects_no_other(fault: str):
    class Faulty(methods.Tent):
        def loss(self, step, state):
            objective = super().loss(step, state)
            if float(step.images.max()) < 2.0:
                return objective
            if fault == "raises":
                raise RuntimeError("no loss today")
            factor = {"is nan": torch.nan, "has a nan gradient": 1.0, "overflows": 1e300}[fault]
            loss = objective.loss * factor
            if fault == "has a nan gradient":
                loss = loss + (step.logits.sum() * 0.0).sqrt()
            return Objective(loss, objective.selected)

    model = network(conv_net)
    given = {"method": Faulty(), "optimizer": "sgd:lr=1e12" if fault == "overflows" else "sgd:lr=1e-3"}
    fleet, adapter = tidefast.Fleet(model, **given), tidefast.adapt(model, **given)
    values = tidefast.adapt(model, **given).network.arena.values
    shown = {"bad": images(0, 4) + 2.0, "good": images(1, 4), "also": images(2, 4)}
    if fault == "raises":
        with pytest.raises(tidefast.errors.StreamsError, match="no loss today") as caught:
            fleet.adapt(shown)
        answers = caught.value.answers
        assert set(caught.value.errors) == {"bad"}
        assert "bad" not in fleet
    else:
        answers = fleet.adapt(shown)
        assert fleet["bad"].last.skipped is not None
        assert torch.equal(fleet._entries["bad"].session.values, values)
    torch.testing.assert_close(answers["good"], adapter(images(1, 4)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        fleet._entries["good"].session.values, adapter.network.arena.values, rtol=1e-12, atol=1e-12
    )
    assert fleet["good"].last.loss == pytest.approx(adapter.last.loss)


@pytest.fixture
def passes(monkeypatch) -> list[tuple[int, ...]]:
    """How many images of each stream every joint pass held."""
    held: list[tuple[int, ...]] = []
    own = JointNetwork.__call__

    def watched(self, images, values, sizes, *others):
        held.append(tuple(sizes))
        return own(self, images, values, sizes, *others)

    monkeypatch.setattr(JointNetwork, "__call__", watched)
    return held


@pytest.mark.parametrize(("name", "further"), [("tent", 0), ("roid", 1), ("cmf", 1), ("deyo", 1)])
def test_streams_share_every_pass_of_a_step(name: str, further: int, passes):
    model = network(conv_net)
    fleet = tidefast.Fleet(model, **options(name, "asr", model))
    fleet.adapt({f"{number}": images(number, 4 + number % 2) for number in range(6)})
    assert [len(sizes) for sizes in passes] == [6] * (2 + further)  # the answer, views, and the source model's answer
    assert passes[0] == passes[-1] == (4, 5) * 3


@dataclasses.dataclass(frozen=True)
class Curious(methods.Tent):
    """Asks for as many views as the brightest pixel says, each smaller than the one before."""

    def loss(self, step, state):
        objective = super().loss(step, state)
        loss, times = objective.loss, int(step.images.max()) - 1
        for number in range(times):
            views = step.images[: 1 + number, :, number:, number:].flip(0)
            entropy = losses.entropy((yield Views(views, gradient=number != 1, source_statistics=number == 2)))
            loss = loss + entropy.mean() * objective.loss
        if times == 3:
            raise RuntimeError("asked too much")
        return Objective(loss, objective.selected)


def test_losses_that_ask_for_this_and_that_get_what_they_would_alone(passes):
    model = network(conv_net)
    given = {"method": Curious(), "optimizer": "sgd:lr=1e-2", "reset": "asr"}
    fleet, lone = tidefast.Fleet(model, **given), {name: tidefast.adapt(model, **given) for name in "abcd"}
    bright = {"a": 2, "b": 0, "c": 1, "d": 1, "e": 3}  # e fails
    for step in range(3):
        shown = {name: images(10 * step + place, 4) for place, name in enumerate(bright)}
        for name, batch in shown.items():
            batch[0, 0, 0, 0] = 1.5 + bright[name]
        passes.clear()
        with pytest.raises(tidefast.errors.StreamsError, match="asked too much") as caught:
            fleet.adapt(shown)
        assert passes == [(4,) * 5, (1,) * 4, (2, 2), (3,), (4,) * 5]
        for name, adapter in lone.items():
            torch.testing.assert_close(caught.value.answers[name], adapter(shown[name]), rtol=1e-12, atol=1e-12)
            assert fleet[name].last.loss == pytest.approx(adapter.last.loss, rel=1e-12)
            torch.testing.assert_close(
                fleet._entries[name].session.values, adapter.network.arena.values, rtol=1e-12, atol=1e-12
            )


def test_images_that_the_network_cannot_take_are_that_streams_error_alone(joined):
    fleet = tidefast.Fleet(network(conv_net), "tent")
    shown = {
        "text": torch.zeros(4, 3, 12, 12, dtype=torch.uint8),
        "flat": torch.rand(4, 7),
        "good": images(0, 4),
        "also": images(1, 4),
    }
    with pytest.raises(tidefast.errors.StreamsError) as caught:
        fleet.adapt(shown)
    assert set(caught.value.errors) == {"text", "flat"}
    assert isinstance(caught.value.errors["text"], TypeError)
    assert caught.value.answers["good"].shape == (4, 10)
    assert list(fleet) == ["also", "good"]
    assert joined == [2]


@pytest.mark.parametrize("rate", [1e-2, torch.tensor(1e-2)])
def test_a_learning_rate_may_be_a_tensor(rate: float | torch.Tensor, joined):
    model = network(conv_net)
    given = {**options("tent", "asr", model), "optimizer": functools.partial(torch.optim.Adam, lr=rate)}
    same_as_alone(model, given, 1e-12)
    assert joined == [len(SIZES)] * STEPS


def test_a_frozen_stream_only_predicts_and_the_callback_hears_of_the_others(tmp_path):
    heard: list[tuple[str, int]] = []
    fleet = tidefast.Fleet(
        network(conv_net),
        "eta",
        reset="asr",
        resident=1,
        callback=lambda name, record: heard.append((name, record.step)),
    )
    fleet.adapt({"a": images(0, 4), "b": images(1, 4)})
    fleet.freeze("b")
    expected = fleet["b"].predict(images(3, 4))
    answers = fleet.adapt({"a": images(2, 4), "b": images(3, 4), "c": images(4, 4)})
    torch.testing.assert_close(answers["b"], expected, rtol=1e-12, atol=1e-12)
    assert heard == [("a", 1), ("b", 1), ("a", 2), ("c", 1)]
    assert [fleet.status(name)["step"] for name in "abc"] == [2, 1, 1]
    assert sum(fleet.status(name)["where"] == "memory" for name in fleet) == 1
    fleet.snapshot(tmp_path / "all")
    again = tidefast.Fleet(network(conv_net), "eta", reset="asr")
    again.restore(tmp_path / "all")
    assert torch.equal(again["a"](images(5, 4)), fleet["a"](images(5, 4)))


def test_only_predicting_together_begins_no_stream():
    fleet = tidefast.Fleet(network(conv_net), "tent")
    results = fleet.take_together({"a": images(0, 4), "b": images(1, 4)}, adapt=False)
    assert [taken.record for taken in results.values()] == [None, None]
    torch.testing.assert_close(results["a"].logits, fleet["a"].predict(images(0, 4)), rtol=1e-12, atol=1e-12)
    assert list(fleet) == []


def test_joint_and_single_calls_from_many_threads_take_turns_and_never_wait_for_each_other():
    fleet = tidefast.Fleet(network(conv_net), "tent", workers=2, resident=3)
    names = list("abcdef")

    def joint(turn: int) -> None:
        chosen = names[turn % 3 :] if turn % 2 else list(reversed(names[: 4 + turn % 3]))
        fleet.adapt({name: images(turn, 4) for name in chosen})

    def single(turn: int) -> None:
        fleet[names[turn % 6]](images(turn, 4))

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(joint if turn % 3 else single, turn) for turn in range(36)]
        for job in jobs:
            job.result(timeout=60)
    expected = dict.fromkeys(names, 0)
    for turn in range(36):
        if turn % 3 == 0:
            expected[names[turn % 6]] += 1
        else:
            for name in names[turn % 3 :] if turn % 2 else names[: 4 + turn % 3]:
                expected[name] += 1
    assert {name: fleet[name].step for name in names} == expected
    assert not any(thread.name.startswith("tidefast") for thread in threading.enumerate())


def test_a_stream_stepped_together_holds_no_more_memory():
    together, alone = (tidefast.Fleet(network(conv_net), "eta", reset="asr") for _ in range(2))
    for step in range(2):
        together.adapt(batches(step))
        for name, shown in batches(step).items():
            alone[name](shown)
    for name in SIZES:
        session = together._entries[name].session
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in session.tensors()
        }
        assert sum(storages.values()) == sum(
            {
                t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
                for t in alone._entries[name].session.tensors()
            }.values()
        )


def test_a_fleet_that_was_first_asked_in_inference_mode_goes_on_outside_of_it():
    model = network(conv_net)
    fleet, adapter = tidefast.Fleet(model, "tent"), tidefast.adapt(model, "tent")
    for step in range(3):
        with torch.inference_mode(step == 0):
            answers = fleet.adapt({"a": images(step, 4), "b": images(50 + step, 4)})
            alone = fleet["c"](images(step, 4))
        expected = adapter(images(step, 4))
        torch.testing.assert_close(answers["a"], expected, rtol=1e-12, atol=1e-12)
        assert torch.equal(alone, expected)
