"""Every method x every reset policy x every family of normalisation keeps every promise."""

from __future__ import annotations

import functools

import pytest
import torch

import tidefast
from tidefast import methods
from tidefast.testing import CHECKS, check_adapter, quick_adapter, small_network

POLICIES = tidefast.list_resets()
FEW_IMAGES = torch.rand(12, 3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
"""Three a batch, for MEMO: each image is an episode of its own."""
OPTIMIZER = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
TRANSFORMERS_ONLY = [name for name in tidefast.list_methods() if methods.base.registry.get(name).transformers_only]
NETWORKS = ("batch", "layer", "group", "attention")


def make(method: str, policy: str, norm: str) -> tidefast.Adapter:
    torch.manual_seed(0)
    return quick_adapter(small_network(norm), method, policy, optimizer=OPTIMIZER, window=8)


def networks_for(method: str) -> tuple[str, ...]:
    return ("attention",) if method in TRANSFORMERS_ONLY else NETWORKS


def policies_for(method: str) -> list[str]:
    return ["asr", "never"] if method == "memo" else POLICIES  # memo has nothing that a policy could reset


@functools.cache
def other_pairs() -> dict[str, tuple[str, str]]:
    """For each method a policy beside ASR and a network: such that all are seen, methods with little choice first."""
    choices = {
        method: [(policy, norm) for policy in policies_for(method) if policy != "asr" for norm in networks_for(method)]
        for method in tidefast.list_methods()
    }
    chosen: dict[str, tuple[str, str]] = {}
    for method in sorted(choices, key=lambda method: len(choices[method])):
        seen = set(chosen.values())
        chosen[method] = next((pair for pair in choices[method] if pair not in seen), choices[method][0])
    return chosen


def quick_pairs(method: str) -> set[tuple[str, str]]:
    """A policy and a network each: ASR, and another."""
    return {("asr", networks_for(method)[0]), other_pairs()[method]}


def matrix() -> list:
    """Every method with every policy on every network; beyond the quick pairs they are slow."""
    return [
        pytest.param(method, policy, norm, marks=[] if (policy, norm) in quick_pairs(method) else pytest.mark.slow)
        for method in tidefast.list_methods()
        for policy in policies_for(method)
        for norm in networks_for(method)
    ]


def test_the_quick_pairs_see_every_policy_on_every_network():
    quick = set().union(*(quick_pairs(method) for method in tidefast.list_methods()))
    others = {(policy, norm) for policy in POLICIES if policy != "asr" for norm in NETWORKS}
    assert others | {("asr", "batch"), ("asr", "attention")} <= quick


@pytest.mark.parametrize(("method", "policy", "norm"), matrix())
def test_adapter_keeps_its_promises(method: str, policy: str, norm: str):
    images = FEW_IMAGES if method == "memo" else None
    assert check_adapter(lambda: make(method, policy, norm), images=images) == list(CHECKS)


@pytest.mark.parametrize("method", tidefast.list_methods())
def test_the_callers_model_is_untouched(method: str):
    norm = "attention" if method in TRANSFORMERS_ONLY else "batch"
    check_adapter(
        lambda model: quick_adapter(model, method, "asr"), checks=["leaves the caller's model alone"], norm=norm
    )


@pytest.mark.parametrize("norm", ["batch", "layer", "group"])
@pytest.mark.parametrize("method", TRANSFORMERS_ONLY)
def test_methods_of_vision_transformers_refuse_other_networks(method: str, norm: str):
    with pytest.raises(ValueError, match=r"tokens of a vision transformer, and .* has none of a known layout"):
        make(method, "never", norm)
