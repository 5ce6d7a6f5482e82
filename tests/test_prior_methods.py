"""PETAL and ViDA: methods that learn from the source before the stream, against plain torch code."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import SWALR

import tidefast
from tidefast import methods
from tidefast.methods.petal import quantile
from tidefast.methods.vida import Adapters, Allotment, Scales, insert_adapters
from tidefast.testing import small_network

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
NESTEROV = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)
ADAM = functools.partial(torch.optim.Adam, lr=1e-3)
IMAGES = torch.rand(5, 8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
SOURCE = [(images, torch.arange(8) % 10) for images in IMAGES.flip(0)[:3]]


def network(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    return small_network(norm).eval()


def adapter(method: methods.Method, norm: str = "batch", *, optimizer=SGD, **options) -> tidefast.Adapter:
    source = SOURCE if method.needs_source else None
    return tidefast.adapt(network(norm), method, optimizer=optimizer, source=source, **options)


def with_batch_statistics(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = module.running_var = None
            module.track_running_stats = False
    return model


def symmetric(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    one = functional.cross_entropy(logits, target.softmax(1))
    return 0.5 * one - 0.5 * (logits.softmax(1) * target.log_softmax(1)).sum(1).mean()


class Half(tidefast.resets.Never):
    """Resets the deeper half after every step."""

    def observe(self, step, state):
        return tidefast.resets.base.Verdict(fraction=0.5, cut=step.network.arena.cut(0.5))


# -- PETAL -----------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.floats(0.0, 1.0, width=32, allow_subnormal=False), min_size=1, max_size=40),
    st.one_of(st.sampled_from([0.0, 0.25, 1.0]), st.floats(0.0, 1.0)),
)
def test_the_quantile_is_that_of_a_full_sort(values, share):
    vector = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(quantile(vector, share), torch.quantile(vector, share), rtol=1e-6, atol=1e-9)


def test_the_quantile_knows_no_limit_of_length():
    vector = torch.arange(17_000_000, dtype=torch.float32).flip(0)
    assert quantile(vector, 0.25).item() == pytest.approx(0.25 * (len(vector) - 1), abs=1)


def trained_by_hand(epochs: int, snapshots_at: set[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance over snapshots, with torch's own schedule; a snapshot follows the numbered updates."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=8e-4, momentum=0.9, weight_decay=5e-4)
    schedule = SWALR(optimizer, anneal_strategy="linear", anneal_epochs=3, swa_lr=0.01)
    kept, update = [], 0
    for epoch in range(epochs):
        for images, labels in SOURCE:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            update += 1
            if update in snapshots_at:
                kept.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
        if epoch > 0:
            schedule.step()
    vectors = torch.stack(kept).double()
    return vectors.mean(0), vectors.var(0, unbiased=False)


@pytest.mark.parametrize(
    ("settings", "snapshots_at"),
    [({}, {6, 9, 12, 15}), ({"swag_snapshots": 3, "swag_epochs": 2}, {4, 5, 6})],
    ids=["one an epoch", "three an epoch"],
)
def test_swag_as_written_out_by_hand(settings, snapshots_at):
    adapted = adapter(methods.PETAL(**settings))
    mean, variance = trained_by_hand(settings.get("swag_epochs", 5), snapshots_at)
    arena, found = adapted.network.arena, adapted.constants["prior_variance"]
    torch.testing.assert_close(arena.source, mean.float(), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(arena.values, arena.source)
    torch.testing.assert_close(found, variance.float(), rtol=1e-2, atol=1e-12)
    assert bool((found >= 0).all())
    assert float(found.max()) > 0


def test_petal_steps_as_written_out_by_hand():
    method = methods.PETAL(confidence=0.0, restore=0.3, prior_weight=1e-3, teacher_momentum=0.9)
    adapted = tidefast.adapt(network().double(), method, optimizer=SGD, source=SOURCE)
    start, variance = adapted.constants["start"], adapted.constants["prior_variance"]
    student, teacher = (with_batch_statistics(network().double()) for _ in range(2))
    for model in (student, teacher):
        nn.utils.vector_to_parameters(start.clone(), model.parameters())
    optimizer = SGD(student.parameters())
    for number, images in enumerate(IMAGES[:3].double()):
        answer = teacher(images).detach()
        torch.testing.assert_close(adapted(images), answer)
        own = nn.utils.parameters_to_vector(student.parameters())
        prior = 0.5 * ((own - start) ** 2 / (variance + 1e-6)).sum()
        optimizer.zero_grad()
        (symmetric(student(images), answer) + 1e-3 * prior).backward()
        assert number == 0 or prior > 0
        fisher = torch.cat([parameter.grad.flatten() ** 2 for parameter in student.parameters()])
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
            own = nn.utils.parameters_to_vector(student.parameters())
            returning = fisher < torch.quantile(fisher, 0.3)
            nn.utils.vector_to_parameters(torch.where(returning, start, own), student.parameters())
    assert float(returning.float().mean()) == pytest.approx(0.3, abs=1e-3)
    own = nn.utils.parameters_to_vector(student.parameters()).detach()
    torch.testing.assert_close(adapted.network.arena.values, own)
    torch.testing.assert_close(adapted.predict(images), teacher(images).detach())


def test_petal_without_prior_and_return_is_cotta():
    petal = adapter(methods.PETAL(restore=0.0, prior_weight=0.0))
    cotta = adapter(methods.CoTTA(restore=0.0))
    for images in IMAGES:
        assert torch.equal(petal(images), cotta(images))
    assert torch.equal(petal.network.arena.values, cotta.network.arena.values)


def test_petal_with_the_random_rule_returns_the_weights_that_cotta_does():
    petal = adapter(methods.PETAL(restore=0.2, restore_rule="random", prior_weight=0.0))
    cotta = adapter(methods.CoTTA(restore=0.2))
    for images in IMAGES:
        petal(images), cotta(images)
    assert torch.equal(petal.network.arena.values, cotta.network.arena.values)


def test_nothing_returns_where_more_gradients_are_zero_than_may_return():
    """Only what lies strictly below the quantile returns."""
    model = network("layer")
    with torch.no_grad():
        model.head.weight.zero_()  # no gradient passes it
    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    adapted = tidefast.adapt(model, methods.PETAL(restore=0.5, prior_weight=0.0), optimizer=frozen)
    arena = adapted.network.arena
    moved = {span.name: slice(span.start, span.stop) for span in arena.tensors}["embed.weight"]
    arena.values[moved].add_(1.0)
    adapted(IMAGES[0])
    assert int((arena.gradients == 0).sum()) > 0.5 * len(arena)
    assert not bool((arena.values[moved] == arena.source[moved]).any())


def test_a_policys_gradient_has_no_say_in_what_returns():
    class Pull(tidefast.resets.Never):
        def adjust_gradient(self, step, state):
            step.network.arena.gradients.add_(1.0)

    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    pulled, plain = (adapter(methods.PETAL(restore=0.5), optimizer=frozen, reset=r) for r in (Pull(), None))
    for one in (pulled, plain):
        one.network.arena.values.add_(1.0)
        one(IMAGES[0])
        assert 0.3 < float((one.network.arena.values == one.network.arena.source).float().mean()) <= 0.5
    assert torch.equal(pulled.network.arena.values, plain.network.arena.values)


def test_petal_resets_to_the_averaged_weights():
    adapted = adapter(methods.PETAL(teacher_momentum=0.5), reset=Half())
    for images in IMAGES[:2]:
        adapted(images)
    arena, teacher = adapted.network.arena, adapted.state["method"].tensor("teacher")
    cut = arena.cut(0.5)
    for values in (arena.values, teacher):
        assert torch.equal(values[cut:], adapted.constants["start"][cut:])
        assert not torch.equal(values[:cut], adapted.constants["start"][:cut])
    adapted.reset()
    assert torch.equal(arena.values, adapted.constants["start"])


def test_the_published_settings_of_petal():
    petal, ten, hundred = methods.PETAL(), methods.PETAL.for_cifar(), methods.PETAL.for_cifar(100)
    assert (petal.restore, petal.prior_weight, petal.confidence, petal.symmetric) == (0.003, 1e-11, 0.1, True)
    assert (ten.restore, ten.prior_weight, ten.confidence, ten.symmetric) == (0.03, 1e-9, 0.92, False)
    assert (hundred.confidence, type(hundred)) == (0.72, methods.PETAL)
    assert methods.PETAL.for_cifar(restore_rule="random").restore == 0.01


@pytest.mark.parametrize("method", [methods.PETAL(), methods.ViDA(warmup_steps=2)], ids=["petal", "vida"])
def test_labels_are_needed_and_asked_for(method):
    with pytest.raises(ValueError, match="needs labelled source"):
        tidefast.adapt(network(), method)
    with pytest.raises(ValueError, match="needs labelled source data: source= must yield"):
        tidefast.adapt(network(), method, source=IMAGES[0])


@pytest.mark.parametrize(
    "settings",
    [{"restore_rule": "fim"}, {"prior_weight": -1.0}, {"swag_epochs": 1}, {"swag_snapshots": 0}, {"swag_rate": -1.0}],
)
def test_settings_of_petal_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        methods.PETAL(**settings)


# -- ViDA ------------------------------------------------------------------------------------------------------


def noisy(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return images + 0.2 * torch.randn(images.shape, generator=generator)


QUIET = {"warmup_steps": 0, "augment": noisy}


class Beside(nn.Module):
    """W x + s1 U1 (D1 x) + s2 U2 (D2 x), written out as layers."""

    def __init__(self, base: nn.Module, ranks: tuple[int, int]) -> None:
        super().__init__()
        self.base, self.scales = base, (1.0, 1.0)
        if isinstance(base, nn.Linear):
            make_down = functools.partial(nn.Linear, base.in_features, bias=False)
            make_up = functools.partial(nn.Linear, out_features=base.out_features, bias=False)
        else:
            geometry = {"kernel_size": base.kernel_size, "stride": base.stride, "padding": base.padding}
            make_down = functools.partial(nn.Conv2d, base.in_channels, bias=False, **geometry)
            make_up = functools.partial(nn.Conv2d, out_channels=base.out_channels, kernel_size=1, bias=False)
        self.downs = nn.ModuleList(make_down(rank) for rank in ranks)
        self.ups = nn.ModuleList(make_up(rank) for rank in ranks)

    def forward(self, x):
        for_each = zip(self.scales, self.downs, self.ups, strict=True)
        return self.base(x) + sum(scale * up(down(x)) for scale, down, up in for_each)

    def take(self, adapters: Adapters) -> None:
        """Start with the values of `adapters`."""
        values = (adapters.low_down, adapters.low_up, adapters.high_down, adapters.high_up)
        layers = (self.downs[0], self.ups[0], self.downs[1], self.ups[1])
        with torch.no_grad():
            for layer, value in zip(layers, values, strict=True):
                layer.weight.copy_(value.view(layer.weight.shape))


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (nn.Linear(6, 4), torch.rand(5, 6)),
        (nn.Conv2d(3, 5, 3, stride=2, padding=1), torch.rand(2, 3, 9, 9)),
        (nn.Conv2d(4, 3, 1), torch.rand(2, 4, 5, 5).contiguous(memory_format=torch.channels_last)),
    ],
    ids=["linear", "convolution", "pointwise"],
)
def test_adapters_compute_what_layers_beside_the_layer_would(layer, inputs):
    allotment, ranks = Allotment(), (1, 3)
    expected = Beside(layer, ranks)
    adapters = Adapters(layer.weight, ranks, allotment, torch.Generator().manual_seed(0))
    for up in (adapters.low_up, adapters.high_up):
        nn.init.normal_(up)
    expected.take(adapters)
    expected.scales = (0.7, 1.3)
    with allotment.giving(Scales(0.7, 1.3)):
        weight = adapters(layer.weight)
    found = torch.func.functional_call(layer, {"weight": weight, "bias": layer.bias}, (inputs,))
    torch.testing.assert_close(found, expected(inputs))
    assert allotment.scales == (1.0, 1.0)


def test_adapters_start_narrow_and_wide_without_effect():
    weight = torch.randn(256, 400)
    adapters = Adapters(weight, (1, 128), Allotment(), torch.Generator().manual_seed(0))
    assert adapters.low_down.shape == (1, 400)
    assert adapters.high_up.shape == (256, 128)
    assert float(adapters.low_down.detach().std()) == pytest.approx(1.0, rel=0.15)
    assert float(adapters.high_down.detach().std()) == pytest.approx(1 / 128**2, rel=0.05)
    assert torch.equal(adapters(weight), weight)


def loud() -> nn.Module:
    """A network whose logits vary enough between views for the scales to matter."""
    model = network().double()
    with torch.no_grad():
        model[-1].weight.mul_(12.0)
    return model


@pytest.mark.parametrize("factory", [NESTEROV, ADAM], ids=["sgd", "adam"])
def test_vida_steps_as_written_out_by_hand_with_two_groups(factory):
    """Three steps: uncertainty over views, scales, student, two learning rates, two paces of the teacher."""
    settings = {"uncertainty": 0.16, "adapter_rate": 0.25, "adapter_momentum": 0.6, "teacher_momentum": 0.9}
    adapted = tidefast.adapt(loud(), methods.ViDA(**QUIET, **settings), optimizer=factory, num_classes=10)
    inserted = [module for module in adapted.network.module.modules() if isinstance(module, Adapters)]
    nets = []
    for _ in range(2):
        model = with_batch_statistics(loud())
        for place, adapters, ranks in zip((3, 6), inserted, ((1, 8), (1, 12)), strict=True):
            model[place] = Beside(model[place], ranks)
            model[place].double().take(adapters)
        nets.append(model)
    student, teacher = nets

    def allot(model, low, high):
        model[3].scales = model[6].scales = (low, high)

    def in_adapter(name):
        return "downs" in name or "ups" in name

    lr = factory.keywords["lr"]
    groups = [
        {"params": [p for n, p in student.named_parameters() if not in_adapter(n)]},
        {"params": [p for n, p in student.named_parameters() if in_adapter(n)], "lr": 0.25 * lr},
    ]
    optimizer = factory(groups)
    sides, scales = set(), (1.0, 1.0)
    for images in IMAGES[:3].double():
        generator = torch.Generator().manual_seed(adapted.state["method"]["draw"])
        with torch.no_grad():
            allot(teacher, *scales)
            views = torch.stack([teacher(noisy(images, generator)) for _ in range(10)])
            u = 0.1 * float(((views - views.mean(0)) ** 2).sum(0).div(9).mean())
            sides.add(u >= 0.16)
            scales = (1 - u, 1 + u) if u >= 0.16 else (1 + u, 1 - u)
            allot(teacher, *scales)
            answer = teacher(images)
        torch.testing.assert_close(adapted(images), answer)
        state = adapted.state["method"]
        assert (state["low"], state["high"]) == pytest.approx(scales)
        allot(student, *scales)
        optimizer.zero_grad()
        loss = symmetric(student(images), answer)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for (name, slow), fast in zip(teacher.named_parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.4 if in_adapter(name) else 0.1)
    assert sides == {True, False}
    assert adapted.last.loss == pytest.approx(loss.item())
    assert len(adapted.network.arena) == sum(p.numel() for p in student.parameters())
    for place, adapters in zip((3, 6), inserted, strict=True):
        own = student[place]
        pairs = zip(("low", "high"), own.downs, own.ups, strict=True)
        for kind, down, up in pairs:
            for found, layer in ((f"{kind}_down", down), (f"{kind}_up", up)):
                torch.testing.assert_close(adapters.get_parameter(found).flatten(), layer.weight.flatten())
        assert bool(adapters.low_up.any())
        assert bool(adapters.high_up.any())
    torch.testing.assert_close(adapted.network.module[-1].weight, student[-1].weight)


def test_vida_that_does_not_learn_answers_as_the_source():
    adapted = adapter(methods.ViDA(**QUIET), optimizer=functools.partial(torch.optim.SGD, lr=0.0))
    plain = with_batch_statistics(network())
    for images in IMAGES[:3]:
        torch.testing.assert_close(adapted(images), plain(images).detach())


@pytest.mark.parametrize("threshold", [0.0, 1e6], ids=["uncertain", "sure"])
def test_the_wide_adapters_are_scaled_unless_the_published_defect_is_asked_for(threshold):
    fixed, published = (
        adapter(methods.ViDA(**QUIET, uncertainty=threshold, scale_high=fixed), num_classes=10)
        for fixed in (True, False)
    )
    fixed(IMAGES[0]), published(IMAGES[0])
    one, two = fixed.state["method"], published.state["method"]
    assert one["low"] == two["low"] != 1.0
    assert one["low"] - 1 == pytest.approx(1 - one["high"])
    assert (one["high"] > 1) == (threshold == 0.0)
    assert two["high"] == 1.0


@pytest.mark.parametrize("norm", ["batch", "layer", "group"])
def test_predict_is_what_the_next_step_answers_and_leaves_the_scales(norm):
    adapted = adapter(methods.ViDA(**{**QUIET, "warmup_steps": 3}), norm, optimizer=NESTEROV)
    allotment = Allotment.of(adapted.network)
    answers = []
    for images in IMAGES[:4]:
        before = adapted.predict(images)
        torch.testing.assert_close(adapted(images), before)
        assert allotment.scales == (1.0, 1.0)
        answers.append(before)
    adapted.reset()
    for images, answer in zip(IMAGES, answers, strict=False):
        assert torch.equal(adapted(images), answer)


def test_the_warm_up_teaches_the_adapters_alone():
    method = methods.ViDA(warmup_steps=30, warmup_rate=1e-3, augment=noisy)
    warmed, cold = adapter(method), adapter(methods.ViDA(**QUIET))
    labels = SOURCE[0][1]
    now, then = (functional.cross_entropy(one.predict(SOURCE[0][0]), labels) for one in (warmed, cold))
    assert now < then - 0.01
    for span in warmed.network.arena.tensors:
        same = torch.equal(*(one.network.arena.source[span.start : span.stop] for one in (warmed, cold)))
        assert same != span.name.endswith(("_up", "_down")), span.name


def test_vida_with_certain_return_stays_at_its_start_and_its_resets_reach_everything():
    method = methods.ViDA(**{**QUIET, "warmup_steps": 2}, restore=1.0)
    returning = adapter(method)
    returning(IMAGES[0])
    assert torch.equal(returning.network.arena.values, returning.constants["start"])

    halved = adapter(methods.ViDA(**QUIET, teacher_momentum=0.5), reset=Half())
    for images in IMAGES[:2]:
        halved(images)
    arena, state = halved.network.arena, halved.state["method"]
    cut = arena.cut(0.5)
    for values in (arena.values, state.tensor("teacher")):
        assert torch.equal(values[cut:], arena.source[cut:])
        assert not torch.equal(values[:cut], arena.source[:cut])
    assert (state["low"], state["high"]) == (1.0, 1.0)


@pytest.mark.parametrize("method", [methods.PETAL(), methods.ViDA(warmup_steps=2, restore=0.1)], ids=["petal", "vida"])
def test_a_run_is_saved_and_continued(method, tmp_path):
    one, two = (adapter(method, num_classes=10) for _ in range(2))
    for images in IMAGES[:2]:
        one(images)
    one.save(tmp_path / "state.safetensors")
    two.load(tmp_path / "state.safetensors")
    for images in IMAGES[2:]:
        assert torch.equal(one(images), two(images))
    assert torch.equal(one.network.arena.values, two.network.arena.values)


class TinyAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)


def adapted_layers(model: nn.Module) -> list[str]:
    marker = ".original"
    names = [name for name in insert_adapters(model, 1, 4) if name.endswith(marker)]
    return [name.removesuffix(marker).replace("parametrizations.", "") for name in names]


def test_adapters_go_to_attention_then_to_convolutions_then_to_linear_layers():
    attention = nn.ModuleDict(
        {"stem": nn.Conv2d(3, 8, 4), "mix": nn.Conv2d(8, 8, 1), "one": TinyAttention(), "head": nn.Linear(8, 2)}
    )
    assert adapted_layers(attention) == ["one.qkv.weight", "one.out.weight"]
    convolutions = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1), nn.Linear(4, 4), nn.Linear(4, 2)
    )
    assert adapted_layers(convolutions) == ["2.weight"]
    assert adapted_layers(network("layer")) == ["mixers.0.weight", "mixers.1.weight"]
    computed = nn.Sequential(nn.Linear(4, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    assert adapted_layers(computed) == ["0.weight"]
    with pytest.raises(ValueError, match="this network has none"):
        tidefast.adapt(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), methods.ViDA(warmup_steps=0))


class Fused(nn.Module):
    """PyTorch's attention, whose projections are one fused weight and a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Conv2d(3, 8, 8, stride=8), nn.Linear(8, 10)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, images):
        tokens = self.embed(images).flatten(2).transpose(1, 2)
        return self.head((tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]).mean(1))


def test_fused_attention_has_adapters_too():
    torch.manual_seed(0)
    model = Fused()
    adapted = tidefast.adapt(model, methods.ViDA(**QUIET), optimizer=SGD)
    arena = adapted.network.arena
    owners = [span.name.rpartition(".")[0] for span in arena.tensors]
    kinds = list(dict.fromkeys(owner for owner in owners if owner.endswith(".0")))
    assert kinds == [
        "attention.parametrizations.in_proj_weight.0",
        "attention.out_proj.parametrizations.weight.0",
    ]
    torch.testing.assert_close(adapted(IMAGES[0]), model(IMAGES[0]).detach())
    moved = {
        s.name for s in arena.tensors if not torch.equal(*(v[s.start : s.stop] for v in (arena.values, arena.source)))
    }
    assert {f"{kind}.low_up" for kind in kinds} <= moved
    assert list(model.state_dict()) == list(Fused().state_dict())


@pytest.mark.slow
def test_a_compiled_model_takes_adapters():
    eager = adapter(methods.ViDA(**QUIET))
    compiled = torch.compile(network(), backend="eager")
    other = tidefast.adapt(compiled, methods.ViDA(**QUIET), optimizer=SGD)
    for images in IMAGES[:2]:
        torch.testing.assert_close(other(images), eager(images), rtol=1e-3, atol=1e-4)


def test_the_published_settings_of_vida():
    vida, ten, hundred = methods.ViDA(), methods.ViDA.for_cifar(), methods.ViDA.for_cifar(100)
    assert (vida.low_rank, vida.high_rank, vida.uncertainty, vida.views_compared) == (1, 128, 0.2, 10)
    assert (vida.teacher_momentum, vida.adapter_momentum, vida.restore, vida.symmetric) == (0.999, 0.8, 0.0, True)
    assert (ten.uncertainty, ten.adapter_momentum, ten.restore, ten.symmetric) == (0.05, 0.999, 0.1, False)
    assert 5e-7 * vida.adapter_rate == pytest.approx(2e-7)
    assert 1e-4 * ten.adapter_rate == pytest.approx(1e-5)
    assert 3e-4 * hundred.adapter_rate == pytest.approx(1e-6)
    optimizer = tidefast.adapt(network(), methods.ViDA(warmup_steps=0)).optimizer
    assert (type(optimizer), optimizer.param_groups[0]["lr"]) == (torch.optim.SGD, 5e-7)
    assert optimizer.param_groups[0]["nesterov"]


@pytest.mark.parametrize(
    "settings",
    [{"low_rank": 0}, {"views_compared": 1}, {"uncertainty": -0.1}, {"adapter_momentum": 1.5}, {"warmup_steps": -1}],
)
def test_settings_of_vida_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        methods.ViDA(**settings)
