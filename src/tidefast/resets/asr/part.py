"""A part of ASR that can be exchanged: given as an object, by name, or by name and options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, overload

from tidefast.core.constraints import Constrained
from tidefast.core.registry import Registry

Spelled: TypeAlias = str | Mapping[str, Any]
"""A part by name, such as "interval:every=512", or as a mapping with its name and options."""


@dataclasses.dataclass(frozen=True)
class Part(Constrained):
    """Base of all parts: a frozen dataclass of options that holds no state."""

    name: ClassVar[str] = ""


P = TypeVar("P", bound=Part)


class Chosen(Generic[P]):
    """A field of a dataclass that is set to a part, or to what spells one, and always holds the part."""

    def __init__(self, registry: Registry[P], kind: type[P], default: str) -> None:
        self.registry, self.kind, self.default = registry, kind, default

    def __set_name__(self, owner: type, name: str) -> None:
        self._place = f"_{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> str: ...

    @overload
    def __get__(self, instance: object, owner: type) -> P: ...

    def __get__(self, instance: object | None, owner: type) -> P | str:
        if instance is None:  # how a dataclass asks for the default
            return self.default
        held: P = instance.__dict__[self._place]
        return held

    def __set__(self, instance: object, value: P | Spelled) -> None:
        instance.__dict__[self._place] = chosen(self.registry, self.kind, value)


def chosen(registry: Registry[P], kind: type[P], given: object) -> P:
    """The part that `given` stands for: itself, `"interval:every=512"` or `{"name": "interval", "every": 512}`."""
    if isinstance(given, kind):
        return given
    if isinstance(given, str):
        name, _, tail = given.partition(":")
        options = dict(_option(text, given) for text in tail.split(",")) if tail else {}
    elif isinstance(given, Mapping) and "name" in given:
        options = dict(given)
        name = str(options.pop("name"))
    else:
        raise TypeError(
            f"{registry.kind} must be a {kind.__name__}, its name, or a mapping with its name, got {given!r}"
        )
    cls = registry.get(name.strip())
    known = [field.name for field in dataclasses.fields(cls)]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise ValueError(
            f"{registry.kind} {name.strip()!r} has no option {', '.join(unknown)}; its options: "
            f"{', '.join(known) or 'none'}"
        )
    return registry.make(name.strip(), **options)


def _option(text: str, whole: str) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key or not value:
        raise ValueError(f"expected name:key=value,key=value, got {whole!r}")
    for convert in (int, float):
        try:
            return key, convert(value)
        except ValueError:
            continue
    return key, value
