"""Any PyTorch classifier: what it may look like, and what is shared with the caller's."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

import tidefast
from tidefast.core.network import Network
from tidefast.core.normalization import affine_names
from tidefast.testing import small_network

IMAGES = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def adapted_logits(model: nn.Module, steps: int = 3, images: torch.Tensor = IMAGES, **options) -> torch.Tensor:
    options = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1), **options}
    adapter = tidefast.adapt(model, "tent", reset="asr", **options)
    return torch.stack([adapter(images) for _ in range(steps)])


def seeded(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    return small_network(norm)


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.inner, self.wrap = seeded(), wrap

    def forward(self, images):
        return self.wrap(self.inner(images))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: (logits, "features"),
        lambda logits: [logits],
        lambda logits: {"logits": logits},
        lambda logits: types.SimpleNamespace(logits=logits),
    ],
    ids=["tuple", "list", "dict", "object"],
)
def test_logits_are_found_in_whatever_the_model_returns(wrap):
    assert torch.equal(adapted_logits(Wrapped(wrap)), adapted_logits(seeded()))


@pytest.mark.parametrize("wrap", [lambda logits: None, lambda logits: logits.sum(), lambda logits: logits[:, :, None]])
def test_a_model_without_logits_is_refused(wrap):
    with pytest.raises((TypeError, ValueError), match=r"expected.*\[batch, classes\]"):
        adapted_logits(Wrapped(wrap))


def test_a_model_that_loses_rows_is_refused():
    with pytest.raises(ValueError, match="7 rows of logits for 8 images"):
        adapted_logits(Wrapped(lambda logits: logits[1:]))


def test_frozen_weights_are_shared_and_adapted_ones_are_not():
    model = seeded()
    adapter = tidefast.adapt(model, "tent")
    shared = {
        name
        for name, parameter in adapter.model.named_parameters()
        if parameter.data_ptr() == model.get_parameter(name).data_ptr()
    }
    assert {name for name, _ in model.named_parameters()} - shared == set(affine_names(model))


@pytest.mark.slow
def test_a_compiled_model_adapts_like_the_eager_one_and_stays_compiled():
    eager = adapted_logits(seeded())
    compiled = torch.compile(seeded(), backend="aot_eager")
    adapter = tidefast.adapt(compiled, "tent")
    assert type(adapter.model) is type(compiled)
    assert torch.allclose(adapted_logits(compiled), eager, atol=1e-5)


def test_a_parallel_wrapper_is_taken_off():
    assert torch.equal(adapted_logits(nn.DataParallel(seeded())), adapted_logits(seeded()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_and_lazy_models_are_refused_with_a_reason():
    with pytest.raises(TypeError, match="TorchScript"):
        adapted_logits(torch.jit.trace(seeded().eval(), IMAGES))
    with pytest.raises(ValueError, match="lazy layers"):
        adapted_logits(nn.Sequential(nn.Flatten(), nn.LazyLinear(10), nn.LazyBatchNorm1d()))
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        adapted_logits(lambda images: images)


def test_channels_last_models_and_images_give_the_same_answers():
    expected = adapted_logits(seeded())
    model = seeded().to(memory_format=torch.channels_last)
    assert torch.allclose(adapted_logits(model), expected, atol=1e-5)
    assert torch.allclose(
        adapted_logits(seeded(), images=IMAGES.contiguous(memory_format=torch.channels_last)), expected, atol=1e-5
    )


def test_a_model_may_reshape_its_input_as_it_likes():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = seeded()

        def forward(self, rows):
            return self.inner(rows.view(-1, 3, 16, 16))

    assert torch.equal(adapted_logits(Flat(), images=IMAGES.flatten(1)), adapted_logits(seeded()))


def test_double_precision_is_kept():
    assert adapted_logits(seeded().double(), images=IMAGES.double()).dtype == torch.float64


def test_dropout_is_off_whatever_mode_the_caller_left_the_model_in():
    model = nn.Sequential(seeded(), nn.Dropout(0.5)).train()
    assert torch.equal(adapted_logits(model), adapted_logits(seeded()))
    assert model[1].training


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_model_adapts_like_the_cpu_one():
    expected = adapted_logits(seeded())
    assert torch.allclose(adapted_logits(seeded().cuda(), images=IMAGES.cuda()).cpu(), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "layers", "numbers"), [("resnet50", 53, 53_120), ("vit_b_16", 25, 38_400), ("convnext_tiny", 23, None)]
)
def test_torchvision_networks_have_the_published_number_of_adapted_parameters(torchvision, name, layers, numbers):
    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None)
    names = affine_names(model)
    assert len({entry.rpartition(".")[0] for entry in names}) == layers
    if numbers is not None:
        assert sum(model.get_parameter(entry).numel() for entry in names) == numbers


def test_sar_leaves_the_last_layers_of_published_networks_alone(torchvision, timm):
    from tidefast.core.normalization import Statistics
    from tidefast.methods import SAR

    def adapted(model: nn.Module) -> list[str]:
        return list(SAR().configure(model, Statistics(model)))

    with torch.device("meta"):
        resnet = torchvision.models.resnet50()
        vits = [timm.create_model("vit_base_patch16_224"), torchvision.models.vit_b_16()]
    assert sum(resnet.get_parameter(name).numel() for name in adapted(resnet)) == 30_592
    assert [len(adapted(vit)) for vit in vits] == [2 * 18, 2 * 18]


@pytest.mark.parametrize("name", ["resnet18", "swin_t", "mobilenet_v3_small"])
def test_torchvision_networks_adapt(torchvision, name):
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None, num_classes=7).eval()
    logits = adapted_logits(model, steps=2, images=torch.rand(2, 3, 224, 224))
    assert logits.shape == (2, 2, 7)
    assert not torch.equal(logits[0], logits[1])


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "test_efficientnet", "test_convnext"])
def test_timm_networks_adapt(timm, name):
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=7)
    side = model.default_cfg["input_size"][-1]
    logits = adapted_logits(model, steps=2, images=torch.rand(2, 3, side, side))
    assert logits.shape == (2, 2, 7)
    assert not torch.equal(logits[0], logits[1])


def test_under_autocast_the_network_runs_with_the_parameters_it_has_now():
    """autocast remembers low-precision copies of parameters, which `holding` and the optimiser change in place."""
    network = Network(small_network(), lambda module, statistics: [name for name, _ in module.named_parameters()])
    images, other = torch.rand(4, 3, 16, 16), network.arena.values + 0.5
    with torch.autocast("cpu", dtype=torch.bfloat16), network.arena.holding(other):
        expected = network(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(images)
        with network.arena.holding(other):
            found = network(images)
    assert torch.equal(found, expected)


class Counting(nn.Module):
    """A network whose forward writes into what is registered, or into a plain attribute."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.net, self.how = seeded(), how
        self.register_buffer("counter", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))
        self.plain = torch.zeros(3)

    def forward(self, images):
        if self.how == "counter":
            self.counter += 1
        elif self.how == "mean":
            self.mean.copy_(images.mean((0, 2, 3)))
        elif self.how == "plain":
            self.plain.add_(1)
        elif self.how == "cache":
            self.mean = images.mean((0, 2, 3))  # another tensor in its place: the caller's stays
        return self.net(images)


@pytest.mark.parametrize("method", ["tent", "memo:views=2"])
@pytest.mark.parametrize("how", ["counter", "mean", "plain"])
def test_a_forward_that_writes_into_a_buffer_is_refused_and_the_callers_stays(how, method):
    model = Counting(how).eval()
    adapter = tidefast.adapt(model, method, reset="asr")
    images = torch.rand(8, 3, 8, 8)
    for use in (adapter, adapter.predict):
        with pytest.raises(ValueError, match=f"forward writes into {how}: .* only where self.training is true"):
            use(images)
    for network in (model, adapter.model):
        for written in (network.counter, network.mean, network.plain):
            assert not written.any()
    assert adapter.step == 0


def test_a_forward_that_keeps_something_in_a_buffers_place_is_none_of_that():
    model = Counting("cache").eval()
    tidefast.adapt(model, "tent")(torch.rand(8, 3, 8, 8))
    assert not model.mean.any()


def test_a_model_without_values_is_refused():
    with torch.device("meta"):
        model = seeded()
    with pytest.raises(ValueError, match="on the meta device, without values: load its weights first"):
        tidefast.adapt(model, "tent")


def test_single_images_of_another_size_are_refused_and_the_others_go_on():
    adapter = tidefast.adapt(seeded(), "tent", window=3)
    adapter(torch.rand(1, 3, 8, 8))
    for use in (adapter, adapter.predict):
        with pytest.raises(ValueError, match=r"those before have the shape \(3, 8, 8\), this one has \(3, 9, 8\)"):
            use(torch.rand(1, 3, 9, 8))
    adapter(torch.rand(1, 3, 8, 8))
    adapter(torch.rand(1, 3, 8, 8))
    assert adapter.last.skipped is None


def test_one_image_without_its_batch_is_told_what_to_do():
    adapter = tidefast.adapt(seeded(), "tent")
    with pytest.raises(ValueError, match=r"\(3, 16, 16\), which is one image; .*\[N, C, H, W\]: pass images\[None\]"):
        adapter(IMAGES[0])
    assert adapter(IMAGES[0][None]).shape == (1, 10)


class KeywordOnly(nn.Module):
    """Takes its images by name alone, as a classifier of Hugging Face may be written."""

    def __init__(self) -> None:
        super().__init__()
        self.net = seeded()

    def forward(self, *, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"logits": self.net(pixel_values)}


def test_a_model_that_takes_its_images_by_name_alone_adapts_like_one_that_does_not():
    torch.testing.assert_close(adapted_logits(KeywordOnly()), adapted_logits(seeded()), rtol=0, atol=0)
