"""Passes for several streams: what takes the place of a layer gives what the layer gives each of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tidefast.core import joint
from tidefast.core.joint import JointNetwork
from tidefast.core.network import Network


def by_batch(module, statistics) -> list[str]:
    statistics.use_batch()
    return ["weight", "bias"]


def numbers(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


@pytest.mark.parametrize("few", [0, 2**20])
@pytest.mark.parametrize("lone", [False, True])
@pytest.mark.parametrize("sizes", [(3, 3, 3), (2, 5, 2)])
@pytest.mark.parametrize(
    ("kind", "layout", "shape"),
    [
        (nn.BatchNorm1d, torch.contiguous_format, (9, 4)),
        (nn.BatchNorm1d, torch.contiguous_format, (18, 4, 5)),
        (nn.BatchNorm2d, torch.contiguous_format, (9, 4, 3, 5)),
        (nn.BatchNorm2d, torch.channels_last, (18, 4, 3, 5)),
        (nn.BatchNorm3d, torch.channels_last_3d, (9, 4, 2, 3, 2)),
    ],
)
def test_batch_normalisation_is_that_of_each_stream_alone(few, lone, sizes, kind, layout, shape, monkeypatch):
    """Few rows and many go different ways; `lone` is a stream that is normalised by the source's statistics."""
    monkeypatch.setattr(joint, "_FEW_BYTES", few)
    layer = kind(4).double().eval()
    layer.running_mean += numbers(4)
    layer.running_var += numbers(4)
    network = JointNetwork(
        Network(nn.Sequential(layer, nn.Flatten()), lambda m, s: [f"0.{n}" for n in by_batch(m, s)]), 3
    )
    rows = (3.0 + numbers(*shape)).contiguous(memory_format=layout).requires_grad_()
    values = numbers(3, 8).requires_grad_()
    each = len(rows) // sum(sizes)
    parts = torch.split(rows, [each * size for size in sizes])
    expected = torch.cat(
        [
            nn.functional.batch_norm(
                part, layer.running_mean, layer.running_var, *own.chunk(2), training=not source, momentum=0.0
            )
            for part, own, source in zip(parts, values, (False, lone, False), strict=True)
        ]
    ).flatten(1)
    alone = (False, lone, False)
    outputs = network(rows, values, sizes, alone)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    upstream = numbers(*expected.shape)
    ours, theirs = (torch.autograd.grad(result, [rows, values], upstream) for result in (outputs, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    assert ours[0].stride() == rows.stride()


def test_half_precision_inputs_are_normalised_in_single_precision():
    layer = nn.BatchNorm2d(4).eval()
    network = JointNetwork(
        Network(nn.Sequential(layer, nn.Flatten()), lambda m, s: [f"0.{n}" for n in by_batch(m, s)]), 2
    )
    images, values = numbers(6, 4, 3, 3).bfloat16(), numbers(2, 8).float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = network(images, values, (4, 2))
    expected = torch.cat(
        [
            nn.functional.batch_norm(part.float(), None, None, *own.chunk(2), training=True)
            for part, own in zip(images.split([4, 2]), values, strict=True)
        ]
    ).flatten(1)
    torch.testing.assert_close(outputs.float(), expected, rtol=1e-2, atol=1e-2)
    ours, theirs = (torch.autograd.grad(result.float().square().sum(), values)[0] for result in (outputs, expected))
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-1)
