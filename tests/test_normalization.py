"""Normalisation layers: which adapt, and whose statistics they use."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tidefast
from tidefast import methods
from tidefast.core.normalization import affine_names


class HandMadeNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, features):
        return self.scale * features / features.square().mean(1, keepdim=True).add(1e-6).sqrt()


FLAT = [nn.BatchNorm1d(4), nn.LayerNorm(4), nn.RMSNorm(4), HandMadeNorm(4)]
SPATIAL = {
    2: [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.SyncBatchNorm(4)],
    3: [nn.BatchNorm3d(4), nn.InstanceNorm3d(4, affine=True, track_running_stats=True)],
    1: [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, affine=True)],
}


@pytest.mark.parametrize("norm", FLAT, ids=lambda norm: type(norm).__name__)
def test_layers_of_vectors_adapt(norm):
    torch.manual_seed(0)
    adapter = tidefast.adapt(nn.Sequential(nn.Linear(6, 4), norm, nn.Linear(4, 3)), "tent")
    adapter(torch.rand(8, 6))
    assert not torch.equal(adapter.network.arena.values, adapter.network.arena.source)


@pytest.mark.parametrize(
    ("dimensions", "norm"),
    [(d, norm) for d, norms in SPATIAL.items() for norm in norms],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_layers_of_maps_adapt_and_running_statistics_stay(dimensions, norm):
    torch.manual_seed(0)
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1](3, 4, 3)
    pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dimensions - 1](2)
    model = nn.Sequential(conv, norm, nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(3))
    shape = (8, 3, *[6] * dimensions)
    model.eval()(torch.rand(shape))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    adapter = tidefast.adapt(model, "tent")
    adapter(torch.rand(shape))
    assert not torch.equal(adapter.network.arena.values, adapter.network.arena.source)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


def test_layers_without_scale_and_shift_still_use_batch_statistics():
    model = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.LayerNorm(4), nn.Linear(4, 3))
    assert affine_names(model) == ["1.weight", "1.bias"]
    images = 5 + torch.rand(8, 4)
    expected = model.train()(images)
    assert torch.allclose(tidefast.adapt(model, "tent")(images), expected, atol=1e-6)


def test_a_network_without_normalisation_is_refused_except_by_methods_that_need_none():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=r"ETA adapts .* has none .* \(its layers: Linear, ReLU\).*'source'"):
        tidefast.adapt(model, "eta")
    assert torch.equal(tidefast.adapt(model, "source")(torch.ones(2, 4)), model(torch.ones(2, 4)))


def conv_bn() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 16, 5))
    model(torch.rand(64, 3, 6, 6))
    return model.eval()


def test_source_and_batch_statistics_are_those_of_eval_and_train_mode():
    model, images = conv_bn(), 2 * torch.rand(8, 3, 6, 6)
    assert torch.equal(tidefast.adapt(model, "source")(images), model(images))
    assert torch.allclose(tidefast.adapt(model, "batchnorm")(images), conv_bn().train()(images), atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_alpha_mixes_source_and_unbiased_batch_statistics(alpha):
    model, images = conv_bn(), 2 * torch.rand(8, 3, 6, 6)
    features = model[0](images)
    norm = model[1]
    mean = (1 - alpha) * norm.running_mean + alpha * features.mean((0, 2, 3))
    variance = (1 - alpha) * norm.running_var + alpha * features.var((0, 2, 3), correction=1)
    scale = norm.weight / (variance + norm.eps).sqrt()
    normal = (features - mean[:, None, None]) * scale[:, None, None] + norm.bias[:, None, None]
    adapter = tidefast.adapt(model, methods.AlphaBatchNorm(alpha=alpha))
    assert torch.allclose(adapter(images), model[3](normal.flatten(1)), atol=1e-5)
    assert torch.allclose(adapter(images), adapter(images))  # nothing is carried over


def test_alpha_works_on_single_images_of_one_pixel():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    image = torch.rand(1, 4)
    assert torch.equal(tidefast.adapt(model, "alphabatchnorm")(image), model(image))
