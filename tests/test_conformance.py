"""Every method x every reset policy x every family of normalisation keeps every promise."""

from __future__ import annotations

import functools

import pytest
import torch

import tidefast
from tidefast import methods, resets
from tidefast.testing import CHECKS, check_adapter, small_network

POLICIES = {
    "never": resets.Never(),
    "periodic": resets.Periodic(every=2),
    "confidence": resets.Confidence(threshold=2.2, margin=1.0),  # fires often on ten classes
    "asr": resets.ASR(alpha0=0.97, lambda_r=1.0),
    "distribution": resets.Distribution(threshold=0.9, short=1, long=2),
}
OPTIMIZER = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
TRANSFORMERS_ONLY = [name for name in tidefast.list_methods() if methods.base.registry.get(name).transformers_only]


QUICK = {
    "memo": {"views": 2},
    "cmae": {"uncertainty_views": 2},
    "vida": {"views_compared": 2, "warmup_steps": 2},
    "rotta": {"every": 16},
    "reservoir": {"models": 3, "quantile": 0.0, "source_styles": 50},
}
"""Settings of methods that take long by themselves, or would do little in a few steps."""
NETWORKS = ("batch", "layer", "group", "attention")


def chosen_method(name: str) -> methods.Method:
    return methods.base.registry.get(name)(**QUICK.get(name, {}))


def source() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(32, 3, 32, 32), torch.arange(32) % 10


def make(method: str, policy: str, norm: str) -> tidefast.Adapter:
    torch.manual_seed(0)
    chosen = chosen_method(method)
    needed = chosen.needs_source or POLICIES[policy].needs_source
    return tidefast.adapt(
        small_network(norm),
        chosen,
        reset=POLICIES[policy],
        optimizer=OPTIMIZER,
        source=source() if needed else None,
        window=8,
    )


def test_every_policy_is_in_the_matrix():
    assert sorted(POLICIES) == tidefast.list_resets()


def networks_for(method: str) -> tuple[str, ...]:
    return ("attention",) if method in TRANSFORMERS_ONLY else NETWORKS


def policies_for(method: str) -> list[str]:
    return ["asr", "never"] if method == "memo" else sorted(POLICIES)  # memo has nothing that a policy could reset


def quick_pairs(method: str) -> set[tuple[str, str]]:
    """A policy and a network each: ASR, and the other policies and the networks in turn from method to method."""
    number, networks = tidefast.list_methods().index(method), networks_for(method)
    others = [policy for policy in policies_for(method) if policy != "asr"]
    other = others[number % len(others)], networks[number // len(others) % len(networks)]
    return {("asr", networks[0]), other}


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
    assert check_adapter(lambda: make(method, policy, norm)) == list(CHECKS)


@pytest.mark.parametrize("method", tidefast.list_methods())
def test_the_callers_model_is_untouched(method: str):
    def factory(model: torch.nn.Module) -> tidefast.Adapter:
        chosen = chosen_method(method)
        return tidefast.adapt(model, chosen, reset="asr", source=source() if chosen.needs_source else None)

    norm = "attention" if method in TRANSFORMERS_ONLY else "batch"
    check_adapter(factory, checks=["leaves the caller's model alone"], norm=norm)


@pytest.mark.parametrize("norm", ["batch", "layer", "group"])
@pytest.mark.parametrize("method", TRANSFORMERS_ONLY)
def test_methods_of_vision_transformers_refuse_other_networks(method: str, norm: str):
    with pytest.raises(ValueError, match=r"tokens of a vision transformer, and .* has none of a known layout"):
        make(method, "never", norm)
