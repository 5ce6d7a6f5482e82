"""The arena: one flat vector of parameters, one of gradients, in depth order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tidefast.core.arena import Arena
from tidefast.core.normalization import affine_names


def network(layers: int = 5, width: int = 3) -> nn.Sequential:
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.BatchNorm1d(width))))


def arena_of(net: nn.Module) -> Arena:
    return Arena(net, affine_names(net))


def test_the_network_computes_with_the_arena_and_gradients_land_in_it():
    net = network()
    arena = arena_of(net)
    net(torch.rand(8, 3)).square().sum().backward()
    expected = torch.cat([p.grad.flatten() for module in net[1::2] for p in module.parameters()])
    assert torch.equal(arena.gradients, expected)
    assert arena.gradients.abs().sum() > 0
    torch.optim.SGD([arena.parameter], lr=0.5).step()
    assert torch.equal(net[1].weight, arena.source[:3] - 0.5 * expected[:3])


@given(
    layers=st.integers(1, 12),
    fraction=st.floats(0, 1),
    unit=st.sampled_from(["layer", "tensor"]),
    rounding=st.sampled_from(["nearest", "ceil-kept"]),
)
def test_selective_reset_copies_only_the_deepest_layers(layers, fraction, unit, rounding):
    arena = arena_of(network(layers))
    arena.assign(arena.source + 1)
    cut = arena.cut(fraction, unit, rounding)
    arena.restore(cut)
    assert torch.equal(arena.values[:cut], arena.source[:cut] + 1)
    assert torch.equal(arena.values[cut:], arena.source[cut:])
    spans = arena.layers if unit == "layer" else arena.tensors
    assert cut in [span.start for span in spans] + [len(arena)]
    reset = sum(span.start >= cut for span in spans)
    slack = 0.5 if rounding == "nearest" else 1.0
    assert abs(reset - fraction * len(spans)) <= slack + 1e-9


def test_half_of_fifteen_layers_resets_eight_as_in_the_paper_and_seven_tensors_as_in_the_released_code():
    arena = arena_of(network(15))
    assert arena.cut(0.5, "layer", "nearest") == arena.layers[7].start
    assert arena.cut(0.5, "layer", "ceil-kept") == arena.layers[8].start


def test_a_share_of_one_resets_everything_and_of_zero_nothing():
    arena = arena_of(network(4))
    assert arena.cut(1.0) == 0
    assert arena.cut(0.0) == len(arena)


def test_holding_gives_the_old_bits_back_also_after_an_error():
    arena = arena_of(network())
    arena.assign(torch.rand(len(arena)))
    before = arena.values.clone()
    inside = []

    def interrupted():
        with arena.holding(arena.source):
            inside.append(arena.values.clone())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.equal(inside[0], arena.source)
    assert torch.equal(arena.values, before)


def test_swapping_parameters_between_forward_and_backward_is_an_error_and_never_a_wrong_gradient():
    net = network()
    arena = arena_of(net)
    loss = net(torch.rand(8, 3)).square().sum()
    with arena.holding(arena.source + 1):
        pass
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_parameter_used_twice_is_held_once():
    shared = nn.BatchNorm1d(3)
    net = nn.Sequential(nn.Linear(3, 3), shared, nn.Linear(3, 3), shared)
    other = nn.LayerNorm(3)
    other.weight = shared.weight
    net.append(other)
    arena = arena_of(net)
    assert len(arena) == 9
    arena.assign(torch.arange(9.0))
    assert net[4].weight.data_ptr() == net[1].weight.data_ptr()
    assert net[1].weight.tolist() == [0.0, 1.0, 2.0]


def test_a_weight_in_channels_last_keeps_its_layout():
    net = nn.Sequential(nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last)
    weight, strides = net[0].weight.detach().clone(), net[0].weight.stride()
    Arena(net, ["0.weight", "0.bias"])
    assert net[0].weight.stride() == strides
    assert torch.equal(net[0].weight, weight)


def test_a_weight_that_is_a_view_with_holes_is_copied_densely():
    net = nn.Sequential(nn.Linear(3, 3))
    net[0].weight = nn.Parameter(torch.arange(18.0).view(3, 6)[:, ::2])
    expected = net[0].weight.detach().clone()
    arena = Arena(net, ["0.weight"])
    assert len(arena) == 9
    assert torch.equal(net[0].weight, expected)


def test_mixed_or_half_precision_is_refused():
    net = network(2)
    net[3].double()
    with pytest.raises(ValueError, match=r"one dtype and device; '3.weight' is torch.float64"):
        arena_of(net)
    with pytest.raises(ValueError, match=r"float32 or float64, got torch\.bfloat16"):
        arena_of(network().bfloat16())
