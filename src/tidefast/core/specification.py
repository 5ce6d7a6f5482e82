"""A name with its options: `eta`, `asr:alpha0=0.3`, `{name: ccc-mini, level: hard}`, `mine.methods:Mine:rate=2`.

The one way in which methods, policies, streams, models and the rest are named: `Registry.make` makes them.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import operator
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from tidefast.core import notation
from tidefast.core.leaving import staying
from tidefast.errors import SpecificationError

T = TypeVar("T")

_OPTIONS = re.compile(r":\s*[A-Za-z_]\w*\s*=")


@dataclass(frozen=True)
class Specification:
    """A registered name (or `module:callable`) and the options that it is made with.

    >>> Specification.parse("ccc-mini:level=hard,speed=128")
    Specification(name='ccc-mini', options={'level': 'hard', 'speed': 128}, title='')
    >>> Specification.parse({"name": "sgd", "lr": 0.01}).label
    'sgd lr=0.01'
    >>> Specification.parse("asr:when=interval:every=512,extent=full").options
    {'when': 'interval:every=512', 'extent': 'full'}
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    title: str = field(default="", compare=False)
    """What tables call it, when the name and the options are not to be spelt out: `{name: eta, title: ETA}`."""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError(f"a name is needed, such as 'eta' or {{name: eta}}, got {self.name!r}")

    @classmethod
    def parse(cls, given: str | Mapping[str, Any] | Specification) -> Specification:
        """From `name:key=value,key=value`, or from a mapping with a `name`."""
        if isinstance(given, Specification):
            return given
        if isinstance(given, Mapping):
            if "name" not in given:
                raise ValueError(f"a mapping needs a name, such as {{name: eta}}, got {dict(given)!r}")
            options = {key: value for key, value in given.items() if key not in ("name", "title")}
            return cls(str(given["name"]), options, str(given.get("title", "")))
        if not isinstance(given, str):
            raise TypeError(f"expected a name, name:key=value or a mapping with a name, got {given!r}")
        start = _OPTIONS.search(given)  # a name may have colons of its own, module:function, and so may a value
        if start is None:
            return cls(given.strip())
        try:
            return cls(given[: start.start()].strip(), notation.options(given[start.start() + 1 :]))
        except ValueError as error:
            raise ValueError(f"expected name:key=value,key=value, got {given!r}: {error}") from error

    def but(self, **options: Any) -> Specification:
        """The same with other options on top."""
        return dataclasses.replace(self, options={**self.options, **options})

    @property
    def is_address(self) -> bool:
        """Whether the name is `module:callable`, and not one that somebody registered."""
        return ":" in self.name

    def as_plain(self) -> str | dict[str, Any]:
        """The shortest form that `parse` takes back."""
        title = {"title": self.title} if self.title else {}
        return {"name": self.name, **self.options, **title} if self.options or title else self.name

    @property
    def label(self) -> str:
        """For people: its title, or else the name and the options."""
        return self.title or self.spelled

    @property
    def spelled(self) -> str:
        """The name and the options."""
        return " ".join([self.name, *(f"{key}={_short(value)}" for key, value in self.options.items())])


Given: TypeAlias = str | Mapping[str, Any] | Specification
"""How a specification may be written."""


def imported(address: str) -> Callable[..., Any]:
    """What `module:name` stands for; modules in the current folder are found too.

    >>> imported("math:sqrt")(9.0)
    3.0
    >>> imported("math:sqr")
    Traceback (most recent call last):
    ...
    tidefast.errors.SpecificationError: module math has no 'sqr'; did you mean 'sqrt'?
    """
    module_name, _, name = address.partition(":")
    module = import_here(module_name)
    try:
        target = operator.attrgetter(name)(module)
    except AttributeError as error:
        raise SpecificationError(f"module {module_name} has no {name!r}{_hint(name, dir(module))}") from error
    if not callable(target):
        raise SpecificationError(f"expected a class or a function, got {type(target).__name__}")
    made: Callable[..., Any] = target
    return made


def import_here(name: str) -> ModuleType:
    """The module of that name, be it in the current folder."""
    if str(Path.cwd()) not in sys.path:  # a script's own folder is there, but not that of whoever calls `tidefast`
        sys.path.insert(0, str(Path.cwd()))
    try:
        with staying(name, SpecificationError):
            return importlib.import_module(name)
    except SpecificationError:
        raise
    except ImportError as error:
        raise SpecificationError(str(error)) from error
    except Exception as error:  # whatever the module does when it is imported
        raise SpecificationError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def bound(
    what: str,
    make: Callable[..., T],
    options: Mapping[str, Any],
    *,
    base: type = object,
    positional: int = 0,
    also: str = "",
) -> functools.partial[T]:
    """A class or a function with its options, checked but not yet called; lists become tuples.

    `preset=` names one of the ready-made settings of a class: a classmethod that is not of its `base`. `positional`:
    arguments that come with the call. `also`: what to add when an option is unknown.

    >>> bound("order 'x'", complex, {"real": 1.0, "imag": 2.0})()
    (1+2j)
    >>> bound("order 'x'", complex, {"imaj": 2.0})
    Traceback (most recent call last):
    ...
    tidefast.errors.SpecificationError: order 'x' has no option 'imaj'; its options: imag, real
    """
    known = _option_names(make, positional)
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    if "preset" in given and isinstance(make, type) and "preset" not in (known or ()):
        make = _preset(what, make, str(given.pop("preset")), base)
    unknown = [] if known is None else sorted(given.keys() - set(known))
    if known is not None and unknown:
        nearest = sorted(known, key=lambda name: -difflib.SequenceMatcher(None, unknown[0], name).ratio())
        raise SpecificationError(
            f"{what} has no option {', '.join(map(repr, unknown))}; its options: {', '.join(nearest) or 'none'}{also}"
        )
    return functools.partial(make, **given)


def called(what: str, make: Callable[[], T], *, somebodys: bool = False) -> T:
    """What `make` returns; that it was not given what it needs is said in one sentence.

    So is whatever else the function of somebody who is not us raises.
    """
    try:
        with staying(what, SpecificationError):
            return make()
    except SpecificationError:
        raise
    except TypeError as error:
        raise SpecificationError(f"{what}: {error}") from error
    except Exception as error:
        if not somebodys:
            raise
        raise SpecificationError(f"{what} raised {type(error).__name__}: {error}") from error


def _option_names(make: Callable[..., Any], positional: int) -> list[str] | None:
    """The options that a class or a function takes; None when it takes any, or does not say."""
    try:
        parameters = list(inspect.signature(make).parameters.values())[positional:]
    except (ValueError, TypeError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    fixed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return [parameter.name for parameter in parameters if parameter.kind not in fixed]


def _preset(what: str, cls: type[T], name: str, base: type) -> Callable[..., T]:
    owners = [owner for owner in cls.__mro__ if owner not in base.__mro__]
    known = [key for owner in owners for key, value in vars(owner).items() if isinstance(value, classmethod)]
    if name not in known:
        raise SpecificationError(f"{what} has no preset {name!r}; it has: {', '.join(known) or 'none'}")
    make: Callable[..., T] = getattr(cls, name)
    return make


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _short(value: Any) -> str:
    return "+".join(map(_short, value)) if isinstance(value, (list, tuple)) else str(value)
