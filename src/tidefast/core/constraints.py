"""Values checked by declaration: an annotation says what is legal, and one place checks it.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Average(Constrained):
...     momentum: Share = 0.9
...     every: Count = 1
...     unit: Literal["layer", "tensor"] = "layer"
>>> Average(momentum=1.5)
Traceback (most recent call last):
...
ValueError: momentum must lie in [0.0, 1.0], got 1.5
>>> Average(every=0)
Traceback (most recent call last):
...
ValueError: every must be a whole number of at least 1, got 0
>>> Average(unit="block")
Traceback (most recent call last):
...
ValueError: unit must be one of 'layer', 'tensor', got 'block'
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import math
import sys
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, Union

from annotated_types import Ge, GroupedMetadata, Gt, Interval, Le, Lt

Share: TypeAlias = Annotated[float, Interval(ge=0.0, le=1.0)]
PositiveShare: TypeAlias = Annotated[float, Interval(gt=0.0, le=1.0)]
NonNegative: TypeAlias = Annotated[float, Ge(0.0)]
Positive: TypeAlias = Annotated[float, Gt(0.0)]
Percent: TypeAlias = Annotated[float, Interval(ge=0.0, le=100.0)]
Count: TypeAlias = Annotated[int, Ge(1)]
CountOrZero: TypeAlias = Annotated[int, Ge(0)]


class Constrained:
    """Base of dataclasses whose fields are checked against their annotations when an object is made.

    What involves several fields at once stays in a `__post_init__` that calls this one first.
    """

    def __post_init__(self) -> None:
        cls: type = type(self)
        for name, constraint in constraints_of(cls).items():
            constraint.require(name, getattr(self, name))


class Constraint(ABC):
    """What a value must be."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The type in a word or two, such as "int" or "str or None"."""

    @property
    def legal(self) -> str:
        """Which values of the type are legal, such as "[0.0, 1.0]"; empty where all are."""
        return ""

    @abstractmethod
    def refusal(self, name: str, value: object) -> Exception | None:
        """What is wrong with `value` as `name`; None when nothing."""

    def require(self, name: str, value: object) -> None:
        """Raise what is wrong with `value`, if anything."""
        refusal = self.refusal(name, value)
        if refusal is not None:
            raise refusal


@dataclass(frozen=True)
class Number(Constraint):
    """A finite number between two bounds, each within or (open) without."""

    whole: bool
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    @property
    def kind(self) -> str:
        return "int" if self.whole else "float"

    @property
    def legal(self) -> str:
        if self.low == -math.inf and self.high == math.inf:
            return ""
        if self.high == math.inf:
            return f"{'>' if self.low_open else '>='} {self.low}"
        return self._interval

    @property
    def _interval(self) -> str:
        return f"{'(' if self.low_open else '['}{self.low}, {self.high}{')' if self.high_open else ']'}"

    def refusal(self, name: str, value: object) -> Exception | None:
        noun = "whole number" if self.whole else "number"
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return TypeError(f"{name} must be a {noun}, got {value!r}")
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        if above and below and -math.inf < value < math.inf:
            return None
        if self.whole and self.high == math.inf and not self.low_open:
            return ValueError(f"{name} must be a whole number of at least {self.low}, got {value!r}")
        return ValueError(f"{name} must lie in {self._interval}, got {value!r}")


@dataclass(frozen=True)
class Choice(Constraint):
    """One of a few values."""

    values: tuple[object, ...]

    @property
    def kind(self) -> str:
        return " or ".join(dict.fromkeys(type(value).__name__ for value in self.values))

    @property
    def legal(self) -> str:
        return f"one of {', '.join(map(repr, self.values))}"

    def refusal(self, name: str, value: object) -> Exception | None:
        return None if value in self.values else ValueError(f"{name} must be {self.legal}, got {value!r}")


@dataclass(frozen=True)
class Plain(Constraint):
    """A value of one type, any value of it."""

    of: type
    noun: str

    @property
    def kind(self) -> str:
        return "None" if self.of is type(None) else self.of.__name__

    def refusal(self, name: str, value: object) -> Exception | None:
        return None if isinstance(value, self.of) else TypeError(f"{name} must be {self.noun}, got {value!r}")


@dataclass(frozen=True)
class Function(Constraint):
    """Something that can be called."""

    kind: str = "callable"

    def refusal(self, name: str, value: object) -> Exception | None:
        return None if callable(value) else TypeError(f"{name} must be callable, got {value!r}")


@dataclass(frozen=True)
class Several(Constraint):
    """A tuple: of one kind and any length, or of a kind for each place."""

    items: tuple[Constraint, ...]
    repeated: bool

    @property
    def kind(self) -> str:
        kinds = " and ".join(dict.fromkeys(item.kind for item in self.items))
        return f"tuple of {kinds}" if self.repeated else f"tuple of {len(self.items)} {kinds}"

    @property
    def legal(self) -> str:
        return next((item.legal for item in self.items), "")

    def refusal(self, name: str, value: object) -> Exception | None:
        if not isinstance(value, tuple) or not (self.repeated or len(value) == len(self.items)):
            return TypeError(f"{name} must be a {self.kind}, got {value!r}")
        items = self.items * len(value) if self.repeated else self.items
        return next(
            filter(None, (item.refusal(name, element) for item, element in zip(items, value, strict=True))), None
        )


@dataclass(frozen=True)
class AnyOf(Constraint):
    """What at least one of several constraints accepts, such as a number or None."""

    options: tuple[Constraint, ...]

    @property
    def kind(self) -> str:
        return " or ".join(dict.fromkeys(option.kind for option in self.options))

    @property
    def legal(self) -> str:
        return ", ".join(filter(None, (option.legal for option in self.options)))

    def refusal(self, name: str, value: object) -> Exception | None:
        refusals = [option.refusal(name, value) for option in self.options if option.kind != "None"]
        if None in refusals or (value is None and len(refusals) < len(self.options)):
            return None
        nearest = next((refusal for refusal in refusals if isinstance(refusal, ValueError)), None)
        if nearest is None and len(refusals) > 1:
            return TypeError(f"{name} must be {self.kind}, got {value!r}")
        return nearest or refusals[0]


@dataclass(frozen=True)
class Unchecked(Constraint):
    """What no annotation can decide, such as an object that its own class checked."""

    kind: str = "object"

    def refusal(self, name: str, value: object) -> Exception | None:
        return None


@functools.cache
def constraints_of(cls: type) -> dict[str, Constraint]:
    """By name, what the fields of a dataclass must be."""
    return {field.name: constraint_of(_hint(cls, field.name)) for field in dataclasses.fields(cls)}


def _hint(cls: type, name: str) -> Any:
    """The annotation of a field; Any where it uses a name that only a function knows, so that nothing is checked."""
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    holder = types.SimpleNamespace(__annotations__={name: inspect.get_annotations(owner)[name]})
    names = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
    try:
        return typing.get_type_hints(holder, names, include_extras=True)[name]
    except NameError:
        return Any


@functools.cache
def constraint_of(annotation: Any) -> Constraint:
    """What an annotation declares.

    >>> constraint_of(Share)
    Number(whole=False, low=0.0, high=1.0, low_open=False, high_open=False)
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        inner = constraint_of(arguments[0])
        return dataclasses.replace(inner, **dict(_bounds(arguments[1:]))) if isinstance(inner, Number) else inner
    if origin is Literal:
        return Choice(arguments)
    if origin in (Union, types.UnionType):
        return AnyOf(tuple(map(constraint_of, arguments)))
    if origin is tuple:
        repeated = arguments[-1] is ...
        return Several(tuple(map(constraint_of, arguments[: -1 if repeated else None])), repeated)
    if origin is collections.abc.Callable or annotation is collections.abc.Callable:
        return Function()
    return _PLAIN.get(annotation) or Unchecked(getattr(annotation, "__name__", "object"))


_PLAIN: dict[Any, Constraint] = {
    int: Number(whole=True),
    float: Number(whole=False),
    bool: Plain(bool, "True or False"),
    str: Plain(str, "text"),
    type(None): Plain(type(None), "None"),
    None: Plain(type(None), "None"),
}


def _bounds(metadata: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for constraint in metadata:
        match constraint:
            case Ge(ge=low):
                yield "low", low
            case Gt(gt=low):
                yield from (("low", low), ("low_open", True))
            case Le(le=high):
                yield "high", high
            case Lt(lt=high):
                yield from (("high", high), ("high_open", True))
            case GroupedMetadata():
                yield from _bounds(tuple(constraint))
