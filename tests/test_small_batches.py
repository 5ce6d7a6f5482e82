"""Few images at a time: answered in the company of recent ones, and gathered into steps."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import tidefast
from tidefast import bench, models, resets, serve, streams
from tidefast.core.snapshot import read, write
from tidefast.paper.scale import MiniScale
from tidefast.testing import quick_adapter, small_network


def network(norm: str = "batch"):
    torch.manual_seed(0)
    return small_network(norm)


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [2, 3])
def test_few_images_are_answered_in_the_company_of_those_before(size: int):
    together = images(4 * size)
    adapter = tidefast.adapt(network(), "batchnorm", window=16)
    answers = [adapter(part) for part in together.split(size)]
    everything = tidefast.adapt(network(), "batchnorm")(together)
    assert torch.allclose(answers[-1], everything[-size:], atol=1e-5)
    assert torch.allclose(adapter.predict(images(size, 1)).argmax(1), adapter(images(size, 1)).argmax(1))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_window_of_few_images_makes_a_step_of_all_that_came_since_the_last(size: int):
    adapter = tidefast.adapt(network(), "tent", window=8)
    records = []
    for part in images(24).split(size):
        adapter(part)
        records.append(adapter.last)
    calls = -(-8 // size)
    alone = int(size > 1)  # the first has no company
    steps = [number for number, record in enumerate(records, 1) if record.skipped is None]
    assert steps == [1] * alone + list(range(calls + alone, len(records) + 1, calls))
    assert all(records[step - 1].selected == calls * size for step in steps[alone:])
    assert [record.adapted for record in records] == [record.skipped is None for record in records]
    assert records[alone].skipped == f"window holds {size} of 8 images"


@pytest.mark.parametrize(
    ("norm", "size", "options"),
    [("batch", 4, {}), ("batch", 3, {"gather": 1}), ("batch", 3, {"window": 1}), ("layer", 2, {}), ("group", 3, {})],
)
def test_other_batches_are_steps_of_their_own(norm: str, size: int, options: dict):
    adapter = tidefast.adapt(network(norm), "tent", **options)
    for part in images(4 * size).split(size):
        before = adapter.network.arena.values.clone()
        adapter(part)
        assert (adapter.last.skipped, adapter.last.selected) == (None, size)
        assert not torch.equal(before, adapter.network.arena.values)


def test_any_batch_smaller_than_the_window_is_gathered_where_it_is_asked_for():
    adapter = tidefast.adapt(network(), "tent", gather=16)
    taken = []
    for part in images(48).split(12):
        adapter(part)
        taken.append(adapter.last.selected)
    assert taken == [12, 0, 24, 0]


def test_a_gathered_window_is_resumed_bit_for_bit(tmp_path):
    one, two = (tidefast.adapt(network(), "roid", reset="asr", window=8) for _ in range(2))
    parts = images(42).split(3)
    for part in parts[:5]:
        one(part)
    one.save(tmp_path / "state")
    two.load(tmp_path / "state")
    for part in parts[5:]:
        assert torch.equal(one(part), two(part))
    assert torch.equal(one.network.arena.values, two.network.arena.values)


# -- sliding statistics ------------------------------------------------------------------------------------------


def passed_by(adapter: tidefast.Adapter, shown) -> list[int]:
    """How many images pass the network in each of some calls."""
    counts: list[int] = []
    hook = adapter.network.module.register_forward_pre_hook(lambda module, inputs: counts.append(len(inputs[0])))
    totals = []
    for part in shown:
        counts.clear()
        adapter(part)
        totals.append(sum(counts))
    hook.remove()
    return totals


def test_once_a_window_has_passed_few_images_pass_alone():
    adapter = tidefast.adapt(network(), "tent", window=8)
    assert passed_by(adapter, images(24).split(1)) == [*range(1, 8), 8, *[1] * 7, 8, *[1] * 7, 8]
    adapter = tidefast.adapt(network(), "tent", window=8)
    assert passed_by(adapter, images(24).split(3)) == [3, 6, 8, 9, 3, 3, 9, 3]


def test_sliding_statistics_are_means_in_which_images_count_for_their_share_of_two_windows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10)).double().eval()
    adapter, shown = tidefast.adapt(model, "batchnorm", window=4), images(14).double()
    mean = squares = torch.zeros(3, dtype=torch.float64)
    for number, image in enumerate(shown.split(1), 1):
        answer = adapter(image)
        window = number % 4 == 0
        passed = shown[number - 4 : number] if window else image
        share = 1.0 if number == 4 else 0.5 if window else 0.125
        mean = mean + share * (passed.mean((0, 2, 3)) - mean)
        squares = squares + share * (passed.square().mean((0, 2, 3)) - squares)
        if number > 4 and not window:
            normalized = (image - mean[:, None, None]) / (squares - mean**2 + 1e-5).sqrt()[:, None, None]
            expected = model[3](normalized.mean((2, 3)))
            torch.testing.assert_close(answer, expected, rtol=1e-12, atol=1e-12)


def test_what_a_method_makes_of_a_batch_of_logits_it_makes_of_the_latest_ones():
    adapter, plain = tidefast.adapt(network(), "roid", window=8), tidefast.adapt(network(), "tent", window=8)
    plain.optimizer.param_groups[0]["lr"] = adapter.optimizer.param_groups[0]["lr"] = 0.0
    adapter.method.__dict__["source_momentum"] = 1.0
    seen = []
    for image in images(30).split(1):
        answer = adapter(image)
        plain(image)
        seen.append(plain._session.sliding)
    torch.testing.assert_close(answer, adapter.method.output(seen[-1].logits)[-1:])
    assert len(seen[-1].logits) == 8


@pytest.mark.parametrize("size", [1, 3])
def test_predicting_leaves_sliding_statistics_and_says_what_a_call_would(tmp_path, size: int):
    adapter = tidefast.adapt(network(), "roid", reset="asr", window=8)
    for part in images(15).split(3):
        adapter(part)
    adapter.save(tmp_path / "before")
    expected = adapter.predict(images(size, 1))
    adapter.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
    assert torch.equal(adapter(images(size, 1)), expected)


def test_a_pass_that_is_interrupted_leaves_sliding_statistics_and_layers_as_they_were(tmp_path):
    one, two = (tidefast.adapt(network(), "tent", window=8) for _ in range(2))
    layer = [module for module in one.network.module.modules() if isinstance(module, nn.BatchNorm2d)][-1]
    for number, part in enumerate(images(30).split(1)):
        hook = layer.register_forward_hook(functools.partial(_interrupt, KeyboardInterrupt if number % 2 else OSError))
        for call in (one, one.predict):
            with pytest.raises((KeyboardInterrupt, OSError)):
                call(part)
        hook.remove()
        assert torch.equal(one(part), two(part))
    one.save(tmp_path / "one")
    two.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert not any(module._forward_pre_hooks for module in one.network.module.modules())


def _interrupt(error: type[BaseException], *_: object) -> None:
    raise error("in the middle")


def test_unusable_images_leave_sliding_statistics():
    one, two = (tidefast.adapt(network(), "tent", window=8) for _ in range(2))
    for part in images(12).split(1):
        one(part)
        two(part)
    assert torch.isfinite(one(images(1) * torch.nan)).all()
    assert torch.equal(one(images(1, 2)), two(images(1, 2)))


@pytest.mark.parametrize("ending", ["a reset", "a larger batch"])
def test_where_the_network_has_changed_otherwise_the_window_passes_it_again(ending: str):
    adapter = tidefast.adapt(
        network(), "tent", window=8, reset=resets.Periodic(every=3) if ending == "a reset" else None
    )
    passed_by(adapter, images(23).split(1))
    if ending == "a reset":
        assert passed_by(adapter, images(1)[None]) == [8]
        assert adapter.last.reset_fraction == 1.0
    else:
        adapter(images(16))
    assert passed_by(adapter, images(2, 1).split(1)) == [8, 1]


@pytest.mark.parametrize("method", ["santa", "cotta"])
def test_methods_of_several_passes_keep_the_company_of_few_images(method: str):
    adapter = quick_adapter(network(), method, window=8)
    assert min(passed_by(adapter, images(23).split(1))[7:]) >= 8


@pytest.mark.parametrize("promise", [{"budget": 0.1}, {"alpha": 0.1}])
def test_answers_that_are_compared_with_the_references_are_given_in_its_company(promise: dict):
    adapter = tidefast.adapt(network(), "tent", window=8, reset=resets.Guard(**promise, belief=0.0))
    assert min(passed_by(adapter, images(23).split(1))[7:]) == 16


def test_networks_in_half_precision_and_passes_under_autocast_slide_too():
    halved = tidefast.adapt(network().bfloat16(), "batchnorm", window=8)
    assert passed_by(halved, images(12).bfloat16().split(1))[8:] == [1] * 4
    joint = tidefast.Fleet(network(), "tent", window=8)
    alone = tidefast.adapt(network(), "tent", window=8)
    with torch.autocast("cpu", torch.bfloat16):
        for image in images(12).split(1):
            answers, expected = joint.adapt({"a": image, "b": image}), alone(image)
    torch.testing.assert_close(answers["a"], expected, rtol=0.05, atol=0.05)


class NormThenAct(nn.BatchNorm2d):
    """A layer with a forward of its own."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs).relu()


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, NormThenAct, functools.partial(nn.BatchNorm2d, affine=False)])
def test_streams_in_half_precision_slide_together_as_alone(norm, caplog):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), norm(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    model = nn.Sequential(*layers).bfloat16().eval()
    joint, alone = tidefast.Fleet(model, "batchnorm", window=8), tidefast.adapt(model, "batchnorm", window=8)
    with caplog.at_level("DEBUG", "tidefast"):
        for image in images(24).bfloat16().split(1):
            answers, expected = joint.adapt({"a": image, "b": image}), alone(image)
            torch.testing.assert_close(answers["a"], expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(
        joint._entries["a"].session.sliding.statistics, alone._session.sliding.statistics, rtol=0.01, atol=1e-4
    )
    assert not caplog.records  # none was stepped alone


def test_float16_keeps_the_company_for_a_variance_may_be_more_than_it_can_hold():
    model = network()
    with torch.no_grad():
        model[0].weight.mul_(3000.0)
    single, half = (tidefast.adapt(kind, "batchnorm", window=8) for kind in (model, copy.deepcopy(model).half()))
    single._slides = False
    for image in images(20).split(1):
        torch.testing.assert_close(half(image.half()), single(image), rtol=0.02, atol=0.02)


def test_a_compiled_network_goes_on_in_company_from_a_file_that_has_sliding_statistics(tmp_path):
    one = tidefast.adapt(network(), "tent", window=8)
    two = tidefast.adapt(torch.compile(network(), backend="eager"), "tent", window=8)
    passed_by(one, images(12).split(1))
    one.save(tmp_path / "state")
    two.load(tmp_path / "state")
    slid, accompanied = (adapter.turn(images(1), adapter._session, adapt=False) for adapter in (one, two))
    assert (slid.slides, len(slid.images)) == (True, 1)
    assert (accompanied.slides, len(accompanied.images)) == (False, 8)


class InTwoPrecisions(nn.Module):
    """A network with a head in double precision."""

    def __init__(self, affine: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=affine), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 10)).double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images).flatten(1).double())


@pytest.mark.parametrize("affine", [True, False])
def test_layers_of_different_precision_slide_too(affine: bool):
    torch.manual_seed(0)
    model = InTwoPrecisions(affine).eval()
    joint, alone = tidefast.Fleet(model, "batchnorm", window=4), tidefast.adapt(model, "batchnorm", window=4)
    for image in images(12).split(1):
        torch.testing.assert_close(joint.adapt({"a": image, "b": image})["a"], alone(image), rtol=1e-4, atol=1e-4)
    assert alone._session.sliding is not None


@pytest.mark.parametrize("factor", [300.0, 1e12])
def test_one_image_that_is_out_of_all_proportion_is_forgotten_with_the_window_after_its_own(factor: float):
    sound, struck = (tidefast.adapt(network(), "batchnorm", window=8) for _ in range(2))
    for number, image in enumerate(images(32).split(1)):
        sound(image)
        struck(image * factor if number == 12 else image)
    for name in ("statistics", "logits"):
        values, expected = (getattr(adapter._session.sliding, name) for adapter in (struck, sound))
        torch.testing.assert_close(values, expected, rtol=0.2, atol=0.2)


def test_a_layer_that_runs_twice_has_no_statistics_that_could_slide():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3)
    model = nn.Sequential(norm, nn.Conv2d(3, 3, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10))
    adapter = tidefast.adapt(model, "tent", window=4)
    assert passed_by(adapter, images(12).split(1)) == [1, 2, 3, *[4] * 9]


def test_an_older_file_begins_with_the_company(tmp_path):
    one, two = (tidefast.adapt(network(), "tent", window=8) for _ in range(2))
    passed_by(one, images(20).split(1))
    one.save(tmp_path / "new")
    tensors, content = read(tmp_path / "new", "adapter")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("sliding.")}
    assert len(kept) == len(tensors) - 2
    write(tmp_path / "old", "adapter", kept, content)
    two.load(tmp_path / "old")
    assert passed_by(two, images(2, 1).split(1)) == [8, 1]


def test_streams_that_sleep_wake_with_their_sliding_statistics():
    asleep, awake = (tidefast.Fleet(network(), "roid", reset="asr", window=8, resident=n) for n in (1, 9))
    for number, part in enumerate(images(60).split(1)):
        name = "ab"[number % 2]
        assert torch.equal(asleep[name](part), awake[name](part))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_small_batches_of_clean_images_cost_little_accuracy(size: int):
    batches = list(streams.make("clean", steps=10, batch=48, seed=1))
    pixels, labels = torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches])

    def accuracy(**options) -> float:
        adapter = tidefast.adapt(models.load("bundled-resnet"), "batchnorm", **options)
        answers = torch.cat([adapter(part) for part in pixels.split(size)])
        return (answers.argmax(1) == labels).double().mean().item()

    assert accuracy() > accuracy(gather=1) + 0.04


def test_studies_of_small_batches_take_each_as_a_step():
    setting = MiniScale()
    gathered = {size: setting.experiment(setting.ccc("easy", batch=size), "ROID").gather for size in (2, 4, 16)}
    assert gathered == {2: 1, 4: 1, 16: None}


def test_small_batches_that_are_steps_of_their_own_are_told_once_unless_they_were_chosen(caplog):
    for options in ({}, {"gather": 1}, {"gather": 16}):
        adapter = tidefast.adapt(network(), "tent", **options)
        for part in images(24).split(8):
            adapter(part)
    adapter = tidefast.adapt(network(), "tent")
    for part in images(40).split(16):  # the last is smaller
        adapter(part)
    for part in images(24).split(8):
        tidefast.adapt(network("layer"), "tent")(part)
    assert [record.getMessage().partition(", gather=1")[0] for record in caplog.records] == [
        "batches of 8 images, and the network normalises by the batch: so few cost accuracy. gather=16 answers them in "
        "the company of recent ones"
    ]


@pytest.mark.parametrize(("options", "taken"), [({}, [12, 0, 24]), ({"gather": 4}, [12, 12, 12])])
def test_a_service_gathers_all_that_is_smaller_than_its_window(tmp_path, options: dict, taken: list[int]):
    service = serve.open_service(serve.Settings(method="tent", state=tmp_path / "state", **options))
    stream = service.fleet["camera"]
    selected = []
    for part in torch.rand(36, 3, 32, 32).split(12):
        stream(part)
        selected.append(stream.last.selected)
    service.snapshots.close()
    assert selected == taken


def test_adapt_run_and_serve_have_one_default_reset_policy():
    policy = tidefast.adapt(network(), "tent").policy
    assert policy == bench.assembly.policy_of(bench.Experiment("drift", "tent"))
    assert policy == tidefast.resets.base.registry.make(serve.Settings().reset)


# -- other settings than a file was saved with --------------------------------------------------------------------


def adapter(lr: float = 0.1, seed: int | None = None) -> tidefast.Adapter:
    return tidefast.adapt(network(), "roid", optimizer=f"sgd:lr={lr}", seed=seed)


@pytest.fixture
def saved(tmp_path):
    first = adapter(0.1, seed=3)
    first(images(16))
    first.save(tmp_path / "state")
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("given", "differs"), [({"lr": 0.2}, r"lr=0.1 \(here 0.2\)"), ({"seed": 4}, r"seed=3 \(here 4\)")]
)
def test_a_file_with_other_settings_is_refused_unless_the_caller_chooses(saved, caplog, given, differs):
    stranger = adapter(**given)
    with pytest.raises(tidefast.SnapshotError, match=differs):
        stranger.load(saved)
    assert stranger.step == 0
    stranger.load(saved, settings="saved")
    assert (stranger.optimizer.param_groups[0]["lr"], stranger.seed, stranger.step) == (0.1, 3, 1)
    stranger = adapter(**given)
    stranger.load(saved, settings="own")
    assert stranger.optimizer.param_groups[0]["lr"] == given.get("lr", 0.1)
    assert (stranger.seed, stranger.step) == (given.get("seed", 3), 1)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    stranger.save(saved)
    adapter(**{"seed": 3, **given}).load(saved)  # it is its own from now on


def test_a_learning_rate_that_was_changed_on_the_way_is_no_other_setting(tmp_path):
    first, second = adapter(), adapter()
    first.optimizer.param_groups[0]["lr"] = 0.01
    first(images(16))
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    assert second.optimizer.param_groups[0]["lr"] == 0.01


def test_a_rate_that_the_guard_lowered_stays_lowered_with_another_that_is_given(tmp_path):
    def guarded(lr: float) -> tidefast.Adapter:
        policy = tidefast.resets.Guard(quiet=2, belief=0.0)
        return tidefast.adapt(network(), "tent", reset=policy, optimizer=f"sgd:lr={lr}")

    first, second = guarded(0.1), guarded(0.2)
    first(images(16))
    first._session.states["reset"]["rate"] = 0.01
    first.optimizer.param_groups[0]["lr"] *= 0.01
    first.save(tmp_path / "state")
    second.load(tmp_path / "state", settings="own")
    assert second.optimizer.param_groups[0]["lr"] == pytest.approx(0.002)
    for _ in range(60):
        second(images(16))
    assert second.state["reset"]["rate"] == 1.0
    assert second.optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def fleet(lr: float, **options) -> tidefast.Fleet:
    return tidefast.Fleet(network(), "roid", optimizer=f"sgd:lr={lr}", **options)


def test_a_fleet_goes_on_with_the_settings_that_the_caller_chooses(tmp_path):
    first = fleet(0.1, seed=3)
    first["a"](images(16))
    first.snapshot(tmp_path / "one")
    with pytest.raises(tidefast.SnapshotError, match=r"lr=0.1 \(here 0.2\), seed=3 \(here 4\)"):
        fleet(0.2, seed=4).restore(tmp_path / "one")
    for choice, expected in (("saved", (0.1, 3)), ("own", (0.2, 4))):
        second = fleet(0.2, seed=4, resident=1)
        second.restore(tmp_path / "one", settings=choice)
        for _ in range(2):  # in memory, and back from disk
            with second._lent("a", begin=False) as (_, lent):
                assert (lent.optimizer.param_groups[0]["lr"], lent.seed) == expected
            second["b"](images(16))
        second.snapshot(tmp_path / choice)
    fleet(0.2, seed=4).restore(tmp_path / "own")
    fleet(0.1, seed=3).restore(tmp_path / "saved", settings="saved")
    second.rollback("a", tmp_path / "one")
    assert second["a"].step == 1


def test_a_stream_with_other_settings_is_told_from_a_damaged_one(tmp_path):
    first = fleet(0.1)
    first["a"](images(16))
    first.snapshot(tmp_path / "one")
    with pytest.raises(tidefast.SnapshotError, match="settings='saved'"):
        fleet(0.2).restore(tmp_path / "one", on_damage=lambda name, problem: None)
