"""Declared state: whatever survives a step is declared once, and reset, save and load follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Value: TypeAlias = Tensor | float | int | bool | str | None
Lifetime: TypeAlias = Literal["episode", "stream"]
Shape: TypeAlias = tuple[int | range | EllipsisType, ...]


@dataclass(frozen=True)
class Field:
    """One value that a method or a reset policy carries from step to step.

    `initial` makes the starting value. A reset that a policy decides on restores the fields of lifetime
    "episode"; fields of lifetime "stream" last until `Adapter.reset`. A `layered` field is laid out like
    the arena, so a selective reset restores only its deepest part. `shape` is that of the tensors a field may hold;
    left out, that of the tensor it starts as. A range stands for the lengths it may grow to, as in (range(101), 64) for
    up to 100 rows, and `...` at the end leaves the rest open, as in (64, ...) for 64 images.
    The `anchor`, if a method has one, holds what it draws the adapted parameters to, laid out like them: a reset with
    `Verdict.target` "anchor" moves it and leaves the parameters.

    >>> state = State([Field("count", lambda: 0), Field("mean", lambda: None, shape=(10,))])
    >>> state["count"] += 1
    >>> state.restart()
    >>> state["count"], state["mean"]
    (0, None)
    """

    name: str
    initial: Callable[[], Value]
    lifetime: Lifetime = "episode"
    layered: bool = False
    shape: Shape | None = None
    anchor: bool = False

    @property
    def grows(self) -> bool:
        """Whether it may hold tensors of several sizes, all of them bounded."""
        return self.shape is not None and ... not in self.shape and any(isinstance(n, range) for n in self.shape)


class StateView(Mapping[str, Value]):
    """The current values of declared fields, to look at; `current` gives the state that has them."""

    def __init__(self, current: Callable[[], StateView]) -> None:
        self._current = current

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._current().fields

    def __getitem__(self, name: str) -> Value:
        return self._current()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())

    @property
    def anchor(self) -> str | None:
        """The name of the field that is declared to be the anchor; None where none is."""
        return next((name for name, field in self.fields.items() if field.anchor), None)

    def tensor(self, name: str) -> Tensor:
        """The value of a field that holds a tensor now."""
        value = self[name]
        assert isinstance(value, Tensor), f"state {name!r} holds {type(value).__name__}, not a tensor"
        return value

    def optional_tensor(self, name: str) -> Tensor | None:
        """The value of a field that holds a tensor or nothing yet."""
        return None if self[name] is None else self.tensor(name)

    def number(self, name: str) -> float:
        """The value of a field that holds a number now."""
        value = self[name]
        assert isinstance(value, (int, float)), f"state {name!r} holds {type(value).__name__}, not a number"
        return value

    def misfit(self, name: str, value: Value) -> str | None:
        """Why `value` cannot be the value of field `name`; None when it can."""
        if name not in self.fields:
            return "is not part of this state"
        field, example = self.fields[name], self.fields[name].initial()
        if isinstance(value, Tensor):
            shape = tuple(example.shape) if field.shape is None and isinstance(example, Tensor) else field.shape
            if shape is None:
                return "is a tensor where a number is expected"
            if not _fits(value, shape):
                return f"has shape {tuple(value.shape)}, expected {shape}"
            if isinstance(example, Tensor) and value.dtype != example.dtype:
                return f"has type {value.dtype}, expected {example.dtype}"
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                return "is not finite"
            return None
        if isinstance(example, Tensor):
            return "is missing"
        if value is None:
            return None if example is None else "is missing"
        if example is not None and type(value) is not type(example):
            return f"is {value!r}, expected a {type(example).__name__}"
        return None


class State(StateView):
    """The current values of a set of fields. Assigning to an undeclared name is an error."""

    def __init__(self, fields: Iterable[Field] = ()) -> None:
        self._fields = {field.name: field for field in fields}
        self._values = {name: field.initial() for name, field in self._fields.items()}
        for name, field in self._fields.items():
            value = self._values[name]
            if field.shape is not None and isinstance(value, Tensor) and not _fits(value, field.shape):
                raise ValueError(
                    f"state {name!r} starts as a tensor of shape {tuple(value.shape)}, and declares {field.shape}: "
                    "give one that fits, or declare the lengths it may have as a range"
                )

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._fields

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def copy(self) -> State:
        """The same fields and values, in memory of their own."""
        twin = State()
        twin._fields = self._fields
        twin._values = {name: v.clone() if isinstance(v, Tensor) else v for name, v in self._values.items()}
        return twin

    def __setitem__(self, name: str, value: Value) -> None:
        if name not in self._values:
            raise KeyError(f"{name!r} was not declared; declared: {', '.join(self._values) or 'nothing'}")
        if isinstance(value, Tensor):
            shape = self._fields[name].shape
            if shape is not None and not _fits(value, shape):
                raise ValueError(
                    f"state {name!r} cannot hold a tensor of shape {tuple(value.shape)}: it declares {shape}; give one "
                    "that fits, or declare the lengths it may have as a range"
                )
            value = value.detach()
        self._values[name] = value

    def update(self, values: Mapping[str, Value]) -> None:
        """Assign several fields."""
        for name, value in values.items():
            self[name] = value

    def restart(self, cut: int = 0, *, whole_stream: bool = False) -> None:
        """Restore initial values: of episode fields, or of all of them with `whole_stream`.

        A layered field keeps its first `cut` entries.
        """
        for name, field in self.fields.items():
            if field.lifetime == "stream" and not whole_stream:
                continue
            fresh, old = field.initial(), self._values[name]
            if field.layered and cut > 0 and isinstance(old, Tensor) and isinstance(fresh, Tensor):
                fresh[:cut] = old[:cut]
            self._values[name] = fresh


def _fits(value: Tensor, expected: Shape) -> bool:
    actual = tuple(value.shape)
    if actual == expected:  # nearly always, and in every step
        return True
    lengths = [length for length in expected if length is not ...]
    if (len(lengths) == len(expected) and len(actual) != len(expected)) or len(actual) < len(lengths):
        return False
    return all(
        n in length if isinstance(length, range) else n == length for n, length in zip(actual, lengths, strict=False)
    )
