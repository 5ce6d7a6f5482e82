"""A part of ASR that can be exchanged: given as an object, by name, or by name and options."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Generic, TypeVar, overload

from tidefast.core.constraints import Constrained
from tidefast.core.registry import Registry
from tidefast.core.specification import Given


@dataclasses.dataclass(frozen=True)
class Part(Constrained):
    """Base of all parts: a frozen dataclass of options that holds no state."""

    name: ClassVar[str] = ""


P = TypeVar("P", bound=Part)


class PartField(Generic[P]):
    """A field of a dataclass that is set to a part, or to what specifies one, and always holds the part."""

    def __init__(self, registry: Registry[P], default: str) -> None:
        self.registry, self.default = registry, default

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

    def __set__(self, instance: object, value: P | Given) -> None:
        instance.__dict__[self._place] = self.registry.make(value)
