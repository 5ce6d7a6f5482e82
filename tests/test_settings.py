"""Every legal setting of every method, policy and part is accepted and works; every neighbour of a bound is refused."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as effort
from hypothesis import strategies as st

import tidefast
from settings_strategy import illegal, settings
from tidefast import methods, resets
from tidefast.core.constraints import Number, constraints_of
from tidefast.resets.asr import accumulations, expressions, extents, measures, triggers
from tidefast.testing import small_network

REGISTRIES = (
    methods.base.registry,
    resets.base.registry,
    *(accumulations.registry, extents.registry, measures.registry, triggers.registry),
    *(expressions.strengths, expressions.momenta),
)
EVERYTHING = [
    pytest.param(registry.get(name), id=f"{registry.kind}-{name}")
    for registry in REGISTRIES
    for name in registry.names()
]
UNBOUNDED = {"delay"}


def together(cls: type, chosen: dict) -> bool:
    """Whether settings that are legal one by one also go together."""
    rules = {
        methods.REM: lambda views=3, hidden_step=0.1, **_: (views - 1) * hidden_step < 1.0,
        tidefast.Reservoir: lambda models=16, buffer=1024, **_: buffer >= models,
        resets.Distribution: lambda short=None, long=None, **_: (
            (short is None and long is None) or (short is not None and long is not None and short < long)
        ),
    }
    return bool(rules.get(cls, lambda **_: True)(**chosen))


@pytest.mark.parametrize("cls", EVERYTHING)
@given(data=st.data())
@effort(max_examples=30, deadline=None)
def test_every_legal_setting_is_accepted(cls: type, data: st.DataObject):
    chosen = data.draw(settings(cls).filter(functools.partial(together, cls)))
    made = cls(**chosen)
    assert {name: getattr(made, name) for name in chosen} == chosen


@pytest.mark.parametrize("cls", EVERYTHING)
def test_every_illegal_neighbour_is_refused_by_name(cls: type):
    for name, constraint in constraints_of(cls).items():
        for value in illegal(constraint):
            with pytest.raises((ValueError, TypeError), match=rf"^{name} must"):
                cls(**{name: value})


@pytest.mark.parametrize("cls", EVERYTHING)
def test_every_number_has_bounds_that_a_subclass_keeps(cls: type):
    for name, constraint in constraints_of(cls).items():
        if isinstance(constraint, Number):
            assert constraint.legal or name in UNBOUNDED, name
        for base in cls.__mro__[1:]:
            inherited = getattr(base, "__dataclass_fields__", {}).get(name)
            if inherited is not None and isinstance(constraint, Number):
                assert constraints_of(base)[name] == constraint, (base, name)


def take_two_steps(method: methods.Method, reset: resets.Reset) -> None:
    torch.manual_seed(0)
    network = small_network("attention" if method.transformers_only else "batch")
    needed = method.needs_source or reset.needs_source
    source = (torch.rand(16, 3, 32, 32), torch.arange(16) % 10) if needed else None
    adapter = tidefast.adapt(network, method, reset=reset, source=source)
    for _ in range(2):
        assert adapter(torch.rand(8, 3, 32, 32)).isfinite().all()


OF_THE_NETWORK = {"skip", "blocks", "style"}
"""Options whose legal values depend on the network's own names, or on packages and weights that may not be there."""
FEW = effort(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@pytest.mark.parametrize("name", methods.base.registry.names())
@given(data=st.data())
@FEW
def test_a_method_with_any_legal_settings_takes_steps(name: str, data: st.DataObject):
    cls = methods.base.registry.get(name)
    drawn = data.draw(settings(cls, reach=2))
    chosen = {**cls.quick, **{key: value for key, value in drawn.items() if key not in OF_THE_NETWORK}}
    assume(together(cls, chosen))
    take_two_steps(cls(**chosen), resets.Never())


@pytest.mark.parametrize("name", resets.base.registry.names())
@given(data=st.data())
@FEW
def test_a_policy_with_any_legal_settings_takes_steps(name: str, data: st.DataObject):
    cls = resets.base.registry.get(name)
    chosen = data.draw(settings(cls, reach=4))
    assume(together(cls, chosen))
    take_two_steps(methods.Tent(), cls(**chosen))
