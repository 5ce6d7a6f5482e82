"""Bad numbers and bad input: answered or refused, and never let into the parameters."""

from __future__ import annotations

import dataclasses
import logging
import math

import pytest
import torch
from torch import Tensor, nn

import tidefast
from tidefast import methods, resets
from tidefast.testing import small_network

NAN, INF = float("nan"), float("inf")


def network(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    return small_network(norm)


def images(count: int = 8, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def with_bad_pixel(value: float = NAN) -> Tensor:
    batch = images()
    batch[2, 0, 3, 3] = value
    return batch


def test_one_bad_image_does_not_spoil_the_answers_for_the_others():
    adapter = tidefast.adapt(network("layer"), "tent")
    good, mixed = adapter.predict(images()), adapter(with_bad_pixel())
    sound = torch.arange(8) != 2
    assert torch.equal(mixed[sound], good[sound])
    assert torch.isfinite(mixed[2]).all()


def test_unusable_batches_are_counted_in_a_row_and_a_sound_one_starts_anew():
    adapter = tidefast.adapt(network(), "eta", reset="asr")
    seen = []
    for batch in (images(), with_bad_pixel(NAN), with_bad_pixel(-INF), images(), with_bad_pixel()):
        adapter(batch)
        seen.append((adapter.last.nonfinite, adapter.last.skipped))
    bad = "non-finite images"
    assert seen == [(0, None), (1, bad), (2, bad), (0, None), (1, bad)]


def test_after_the_limit_the_adapter_returns_to_the_source_and_says_so(caplog):
    adapter = tidefast.adapt(network(), "tent", nonfinite_limit=3)
    for seed in range(4):
        adapter(images(seed=seed))
    fractions = []
    with caplog.at_level(logging.WARNING, logger="tidefast"):
        for _ in range(3):
            adapter(with_bad_pixel())
            fractions.append(adapter.last.reset_fraction)
    assert fractions == [0.0, 0.0, 1.0]
    assert torch.equal(adapter.network.arena.values, adapter.network.arena.source)
    assert "3 batches in a row were unusable" in caplog.text


def test_or_it_raises_and_stays_usable():
    adapter = tidefast.adapt(network(), "tent", nonfinite_limit=2, on_nonfinite="raise")
    adapter(images())
    adapter(with_bad_pixel())
    before = adapter.network.arena.values.clone()
    with pytest.raises(tidefast.NonFiniteError, match=r"2 batches in a row .* non-finite images"):
        adapter(with_bad_pixel())
    assert torch.equal(adapter.network.arena.values, before)
    assert torch.isfinite(adapter(images())).all()


class Exploding(nn.Module):
    """A network whose logits, or whose gradient, are not finite for bright images."""

    def __init__(self, part: str):
        super().__init__()
        self.inner, self.part = network(), part

    def forward(self, batch):
        logits = self.inner(batch)
        if batch.mean() > 10:
            logits = logits / 0.0 if self.part == "logits" else logits + (logits - logits).abs().sqrt()
        return logits


@pytest.mark.parametrize(
    ("part", "reason"), [("logits", "non-finite logits"), ("gradient", "non-finite loss or gradient")]
)
@pytest.mark.parametrize("method", ["tent", "eta", "sar", "roid", "cmf"])
def test_non_finite_logits_and_gradients_change_nothing(method, part, reason):
    settings = {"eta": {"entropy_margin": 1.1, "similarity_margin": 2.0}, "sar": {"entropy_margin": 1.1}}
    chosen = methods.base.registry.get(method)(**settings.get(method, {}))
    adapter = tidefast.adapt(Exploding(part), chosen, reset=resets.ASR(alpha0=0.9))
    adapter(images())
    before = {name: dict(state) for name, state in adapter.state.items()}
    values = adapter.network.arena.values.clone()
    logits = adapter(images() + 100)
    assert torch.isfinite(logits).all()
    assert adapter.last.skipped == reason
    assert torch.equal(adapter.network.arena.values, values)
    for name, state in adapter.state.items():
        for key, value in state.items():
            same = torch.equal(value, before[name][key]) if isinstance(value, Tensor) else value == before[name][key]
            assert same, f"{name}.{key} changed"
    assert not adapter.network.arena.gradients.any()


class Steep(methods.Tent):
    """A method whose gradient is finite in the second step, and its square is not."""

    def loss(self, step, state):
        objective = super().loss(step, state)
        return dataclasses.replace(objective, loss=objective.loss * (1e30 if step.number == 2 else 1.0))


def test_a_gradient_whose_square_overflows_changes_nothing():
    adapter = tidefast.adapt(small_network(), Steep(), reset="asr")
    fleet = tidefast.Fleet(small_network(), Steep(), reset="asr")
    for seed in range(2):
        before = adapter.network.arena.values.clone()
        adapter(images(seed=seed))
        fleet.adapt({name: images(seed=seed) for name in "ab"})
    assert torch.equal(adapter.network.arena.values, before)
    for stream in (adapter, fleet["a"], fleet["b"]):
        assert stream.last.skipped == "non-finite loss or gradient"


class Overflowing(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=1.0, momentum=0.9)

    def step(self):
        super().step()
        with torch.no_grad():
            self.param_groups[0]["params"][0].mul_(INF)


class Brittle(methods.Tent):
    """A method whose hook after the update cannot bear numbers that are not finite."""

    def loss(self, step, state):
        objective = super().loss(step, state)
        return dataclasses.replace(objective, loss=objective.loss * (math.nan if step.number == 2 else 1.0))

    def after_step(self, step, state):
        if not bool(torch.isfinite(step.network.arena.values).all()):
            raise ArithmeticError("a hook met a parameter that is not finite")


def test_what_fails_on_a_gradient_that_is_not_finite_is_an_unusable_batch_and_no_error():
    adapter = tidefast.adapt(small_network(), Brittle())
    adapter(images())
    before = adapter.network.arena.values.clone()
    adapter(images(seed=1))
    assert adapter.last.skipped == "non-finite loss or gradient"
    assert torch.equal(adapter.network.arena.values, before)
    adapter(images(seed=2))
    assert adapter.last.adapted


class Wary(nn.Module):
    """A network that refuses numbers that are not finite."""

    def __init__(self):
        super().__init__()
        self.inner = small_network()

    def forward(self, images):
        if not bool(torch.isfinite(images).all()):
            raise ValueError("not a number")
        return self.inner(images)


def test_images_that_a_network_itself_refuses_are_an_unusable_batch():
    adapter = tidefast.adapt(Wary(), "tent")
    assert torch.isfinite(adapter(with_bad_pixel())).all()
    assert adapter.last.skipped == "non-finite images"


def test_an_update_that_overflows_the_parameters_is_undone_by_a_full_reset():
    adapter = tidefast.adapt(network(), methods.Tent(), optimizer=Overflowing)
    logits = adapter(images())
    assert torch.isfinite(logits).all()
    assert torch.equal(adapter.network.arena.values, adapter.network.arena.source)
    assert not adapter.optimizer.state
    assert adapter.last.reset_fraction == 1.0
    assert adapter.last.skipped == "non-finite parameters after the update"


# -- batches of one -------------------------------------------------------------------------------------------


def singles(adapter: tidefast.Adapter, count: int) -> list[tidefast.StepRecord]:
    history = tidefast.History()
    adapter.callbacks.append(history)
    for image in images(count):
        assert adapter(image[None]).shape == (1, 10)
    return list(history)


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_single_images_step_once_per_window_and_asr_sees_the_window(norm):
    adapter = tidefast.adapt(network(norm), "tent", reset=resets.ASR(alpha0=0.999), window=4)
    records = singles(adapter, 12)
    stepped = [record.step for record in records if record.skipped is None]
    assert stepped == [4, 8, 12]
    assert all(record.concentration is not None for record in records if record.skipped is None)
    assert any(record.reset_fraction > 0 for record in records)


def test_a_full_window_steps_exactly_like_a_batch():
    one, many = (tidefast.adapt(network(), "tent", window=8) for _ in range(2))
    last = [one(image[None]) for image in images(8)][-1]
    assert torch.equal(last, many(images(8))[-1:])
    assert torch.equal(one.network.arena.values, many.network.arena.values)


def test_a_lone_image_on_a_batchnorm_network_is_answered_with_the_sources_statistics():
    model = network().eval()
    assert torch.equal(tidefast.adapt(model, "tent")(images(1)), model(images(1)))


def test_later_single_images_are_normalised_with_those_before():
    adapter = tidefast.adapt(network(), "tent", window=8)
    answers = [adapter(image[None]) for image in images(3)]
    assert torch.equal(answers[2], tidefast.adapt(network(), "batchnorm")(images(3))[-1:])
    assert torch.equal(answers[2], tidefast.adapt(network(), "tent").predict(images(3))[-1:])


def test_a_window_of_one_adapts_on_every_image():
    adapter = tidefast.adapt(network("layer"), "roid", window=1)
    assert [record.skipped for record in singles(adapter, 3)] == [None, None, None]
    assert not torch.equal(adapter.network.arena.values, adapter.network.arena.source)


def test_a_bad_single_image_never_enters_the_window():
    adapter = tidefast.adapt(network(), "tent", window=4)
    adapter(images(1))
    adapter(torch.full((1, 3, 16, 16), NAN))
    assert adapter.last.skipped == "non-finite images"
    for _ in range(3):
        assert torch.isfinite(adapter(images(1))).all()
    assert adapter.last.skipped is None


# -- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (torch.zeros(4, 3, 16, 16, dtype=torch.uint8), TypeError, r"floats .* got torch.uint8.* / 255"),
        (torch.zeros(3, 16, 16), ValueError, r"shape \(3, 16, 16\), which is one image.*images\[None\]"),
        (torch.zeros(2, 2, 3, 16, 16), ValueError, r"shape \(2, 2, 3, 16, 16\).* batches with 4 dimensions"),
        (torch.zeros(7), ValueError, r"at least 2 dimensions, got shape \(7,\)"),
        (torch.zeros(0, 3, 16, 16), ValueError, "batch is empty"),
        ([[1.0]], TypeError, "torch.Tensor, got list"),
        (torch.zeros(4, 3, 16, 16, device="meta"), ValueError, "images are on meta, the model is on cpu"),
    ],
)
@pytest.mark.parametrize("call", ["__call__", "predict"])
def test_unusable_images_are_refused_and_nothing_changes(batch, error, message, call):
    adapter = tidefast.adapt(network(), "tent")
    with pytest.raises(error, match=message):
        getattr(adapter, call)(batch)
    assert adapter.step == 0


def test_the_number_of_classes_must_agree():
    with pytest.raises(ValueError, match="returned 10 classes, but num_classes is 7"):
        tidefast.adapt(network(), "tent", num_classes=7)(images())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "tnet"}, r"unknown method 'tnet'; did you mean 'tent'\? known: alphabatchnorm, batchnorm"),
        ({"method": "eta", "reset": "rdum"}, r"unknown reset 'rdum'; did you mean 'rdumb'\?"),
        ({"method": "eata"}, r"EATA needs source images.*source="),
        ({"method": "tent", "source": [images()]}, "Tent uses no source data"),
        ({"method": "tent", "window": 0}, "window must be a whole number of at least 1, got 0"),
        ({"method": "tent", "nonfinite_limit": 0}, "nonfinite_limit"),
        ({"method": "tent", "on_nonfinite": "ignore"}, "on_nonfinite must be one of 'reset', 'raise'"),
        ({"method": "tent", "num_classes": 1}, "num_classes must be a whole number of at least 2"),
        ({"method": "eata", "source": []}, "yielded no images"),
        ({"method": "eata", "source": torch.full((8, 3, 16, 16), NAN)}, "non-finite 'fisher'"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_given_and_what_to_do(arguments, message):
    with pytest.raises(ValueError, match=message):
        tidefast.adapt(network(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": methods.Tent}, "method must be a Method, its name, or a mapping with its name, got <class"),
        ({"method": "tent", "reset": 5}, "reset must be a Reset, its name, or a mapping with its name, got 5"),
        ({"method": "tent", "optimizer": lambda parameters: None}, r"functools.partial\(torch.optim.SGD"),
        ({"method": "eata", "source": [torch.zeros(2, 3, 16, 16, dtype=torch.uint8)]}, "float images"),
        ({"method": "tent", "window": 2.5}, "window must be a whole number, got 2.5"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        tidefast.adapt(network(), **arguments)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: methods.ETA(entropy_margin=-1), "entropy_margin"),
        (lambda: methods.ETA(similarity_margin=0), "similarity_margin"),
        (lambda: methods.EATA(fisher_weight=-1.0), "fisher_weight"),
        (lambda: methods.EATA(source_samples=0), "source_samples"),
        (lambda: methods.SAR(rho=-0.1), "rho"),
        (lambda: methods.SAR(reset_constant=math.nan), "reset_constant"),
        (lambda: methods.ROID(source_momentum=1.5), "source_momentum"),
        (lambda: methods.ROID(temperature=0.0), "temperature"),
        (lambda: methods.ROID(batch_size=0), "batch_size"),
        (lambda: methods.CMF(gamma=2.0), "gamma"),
        (lambda: methods.AlphaBatchNorm(alpha=1.1), "alpha"),
        (lambda: resets.Periodic(every=0), "every"),
        (lambda: resets.Confidence(momentum=-0.5), "momentum"),
        (lambda: resets.ASR(alpha0=0.0), "alpha0"),
        (lambda: resets.ASR(mu0=1.01), "mu0"),
        (lambda: resets.ASR(r0=-0.1), "r0"),
        (lambda: resets.ASR(target="weights"), "target must be one of 'live', 'anchor'"),
        (lambda: resets.ASR(unit="block"), "unit"),
        (lambda: resets.ASR(lambda_r=math.inf), "lambda_r"),
    ],
)
def test_hyperparameters_out_of_range_are_refused_at_construction(make, name):
    with pytest.raises(ValueError, match=name):
        make()


def test_an_augmentation_that_changes_the_shape_is_refused():
    adapter = tidefast.adapt(network(), methods.ROID(augment=lambda batch: batch[:, :, :4]))
    with pytest.raises(ValueError, match="augment must return images of the shape it was given"):
        adapter(images())
