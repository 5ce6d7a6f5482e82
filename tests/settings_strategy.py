"""Legal and illegal settings of any dataclass, drawn from its declarations."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from tidefast.core.constraints import AnyOf, Choice, Constraint, Function, Number, Plain, Several, constraints_of
from tidefast.core.registry import Registry

LARGEST = 1e3
"""Of a number without an upper bound: what lies beyond is legal, but no network survives it."""


def same(images: Any) -> Any:
    """An augmentation that does nothing."""
    return images


def legal(constraint: Constraint, reach: int) -> st.SearchStrategy[Any] | None:
    """Values that a constraint accepts, whole numbers at most `reach` above the lowest; None where it does not say."""
    match constraint:
        case Number(whole=True, low=low, high=high):
            first = 0 if low == -math.inf else int(low)
            return st.integers(first, int(min(high, first + reach)))
        case Number(low=low, high=high, low_open=low_open, high_open=high_open):
            return st.floats(
                max(low, -LARGEST),
                min(high, LARGEST),
                exclude_min=low_open,
                exclude_max=high_open,
                allow_subnormal=False,
            )
        case Choice(values=values):
            return st.sampled_from(values)
        case Plain(of=of):
            return {bool: st.booleans(), type(None): st.none(), str: st.text("ab", max_size=2)}[of]
        case Function():
            return st.just(same)
        case Several(items=(item,), repeated=True):
            inner = legal(item, reach)
            return None if inner is None else st.lists(inner, max_size=2).map(tuple)
        case AnyOf(options=options):
            known = [strategy for option in options if (strategy := legal(option, reach)) is not None]
            return st.one_of(known) if len(known) == len(options) else None
    return None


def settings(cls: type, reach: int = 1000) -> st.SearchStrategy[dict[str, Any]]:
    """Legal settings of a class: some of its options, each on its own."""
    drawn = {}
    for field in dataclasses.fields(cls):
        parts = getattr(inspect.getattr_static(cls, field.name, None), "registry", None)
        if isinstance(parts, Registry):
            drawn[field.name] = st.sampled_from(parts.names()).flatmap(
                lambda name, parts=parts: settings(parts.get(name), reach).map(
                    lambda options: parts.make(name, **options)
                )
            )
        elif field.init and (strategy := legal(constraints_of(cls)[field.name], reach)) is not None:
            drawn[field.name] = strategy
    return st.fixed_dictionaries({}, optional=drawn)


def illegal(constraint: Constraint) -> Iterator[object]:
    """What lies just beyond each bound, and what is of another type."""
    match constraint:
        case Number(whole=whole, low=low, high=high, low_open=low_open, high_open=high_open):
            yield from ("1", True, math.nan, math.inf, -math.inf)
            if low > -math.inf:
                yield low if low_open else low - 1 if whole else math.nextafter(low, -math.inf)
            if high < math.inf:
                yield high if high_open else high + 1 if whole else math.nextafter(high, math.inf)
        case Choice():
            yield from ("no such", 17)
        case Plain(of=of):
            yield from (() if of is type(None) else (17, None))
        case Function():
            yield "no function"
        case Several():
            yield from ("text", 17, (17,))
        case AnyOf(options=options):
            for option in options:
                yield from (value for value in illegal(option) if constraint.refusal("it", value) is not None)
