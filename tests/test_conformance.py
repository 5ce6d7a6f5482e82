"""Every method x every reset policy x every family of normalisation keeps every promise."""

from __future__ import annotations

import functools
import os

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
WHOLE = "TIDEFAST_WHOLE_MATRIX" in os.environ


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


def networks_for(method: str, policy: str) -> list[str]:
    """All of them with `make matrix`; in every test run each method with each policy, and each network with ASR."""
    if method in TRANSFORMERS_ONLY:
        return ["attention"]
    if WHOLE:
        return ["batch", "layer", "group", "attention"]
    return ["batch", "layer", "group", "attention"] if policy == "asr" else ["batch"]


@pytest.mark.parametrize(
    ("method", "policy", "norm"),
    [
        (method, policy, norm)
        for method in tidefast.list_methods()
        for policy in sorted(POLICIES)
        for norm in networks_for(method, policy)
        if method != "memo" or policy in ("never", "asr")  # slow, and it has nothing that a policy could reset
    ],
)
def test_adapter_keeps_its_promises(method: str, policy: str, norm: str):
    torch.set_num_threads(1)
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
