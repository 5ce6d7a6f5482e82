"""A part of ASR that can be exchanged: given as an object, by name, or by name and options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from holdfast.registry import Registry


@dataclasses.dataclass(frozen=True)
class Part:
    """Base of all parts: a frozen dataclass of options that holds no state."""

    name: ClassVar[str] = ""


P = TypeVar("P", bound=Part)


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
    unknown = options.keys() - {field.name for field in dataclasses.fields(cls)}
    if unknown:
        known = ", ".join(field.name for field in dataclasses.fields(cls)) or "none"
        raise ValueError(f"{registry.kind} {name!r} has no option {', '.join(sorted(unknown))}; its options: {known}")
    return cls(**options)


def _option(text: str, whole: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"expected name:key=value,key=value, got {whole!r}")
    for convert in (int, float):
        try:
            return key.strip(), convert(value)
        except ValueError:
            continue
    return key.strip(), value.strip()
