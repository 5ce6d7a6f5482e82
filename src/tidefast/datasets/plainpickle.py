"""Pickles of plain data: dictionaries, lists, numbers, text and numpy arrays, and nothing that runs.

Python's own unpickler is not used: with numpy's classes let in, a forged file makes numpy follow addresses of its
choice. A pickle is a program for a small stack machine; here is one that knows the instructions which plain data needs
and makes arrays from their bytes itself.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidefast.datasets.errors import DatasetError

LARGEST_FILE = 2**28
"""Bytes; the largest published file that is read so has 31 million."""
_LARGEST_INTEGER = 2**63
_KINDS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_MARK = object()
_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"): "begin array",
    ("numpy._core.multiarray", "_reconstruct"): "begin array",
    ("numpy.core.numeric", "_frombuffer"): "whole array",
    ("numpy._core.numeric", "_frombuffer"): "whole array",
    ("numpy", "ndarray"): "array",
    ("numpy", "dtype"): "kind of number",
    ("_codecs", "encode"): "bytes",
}


class _NotPlainError(Exception):
    """The program does what plain data does not need."""


@dataclass(frozen=True, eq=False)
class _Known:
    """A name of another module that a program may call."""

    meaning: str


@dataclass(eq=False)
class _NumberKind:
    """A numpy dtype: its code, and the byte order that the program sets afterwards."""

    code: str
    order: str = "="

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


@dataclass(eq=False)
class _PendingArray:
    """An array that the program has begun and fills later."""

    values: np.ndarray[Any, Any] | None = None


def read_pickle(path: Path) -> Any:
    """The content of a pickle, as far as it is plain data; anything else is a DatasetError and is not run."""
    try:
        with open(path, "rb") as file:
            program = file.read(LARGEST_FILE + 1)
        if len(program) > LARGEST_FILE:
            raise _NotPlainError(f"it has more than {LARGEST_FILE} bytes")
        return _Machine().run(program)
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise DatasetError(f"{path} is truncated, damaged or not a pickle of plain data: {str(error)[:300]}") from error


class _Machine:
    """Runs the instructions of one pickle; what it holds never exceeds a multiple of the file."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        for operation, argument, _ in pickletools.genops(program):
            if operation.name == "STOP":
                result = self._pop()
                if self._stack:
                    raise _NotPlainError("it leaves values behind")
                return _finished(result)
            act = _OPERATIONS.get(operation.name)
            if act is None:
                raise _NotPlainError(f"it has the instruction {operation.name}, which plain data does not need")
            act(self, argument)
        raise _NotPlainError("it has no end")

    def push(self, value: Any) -> None:
        if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
            raise _NotPlainError("a whole number of more than 64 bits")
        self._stack.append(value)

    def push_bytes(self, value: str | bytes | bytearray) -> None:
        """Of Python 2, whose text was bytes."""
        self.push(value.encode("latin1") if isinstance(value, str) else bytes(value))

    def _pop(self) -> Any:
        if not self._stack:
            raise _NotPlainError("an instruction lacks its value")
        value = self._stack.pop()
        if value is _MARK:
            raise _NotPlainError("an instruction lacks its value")
        return value

    def _top(self, kind: type) -> Any:
        if not self._stack or type(self._stack[-1]) is not kind:
            raise _NotPlainError(f"an instruction expects a {kind.__name__}")
        return self._stack[-1]

    def _since_mark(self) -> list[Any]:
        for at in range(len(self._stack) - 1, -1, -1):
            if self._stack[at] is _MARK:
                values = self._stack[at + 1 :]
                del self._stack[at:]
                return values
        raise _NotPlainError("an instruction lacks its mark")

    def mark(self, _: object) -> None:
        self._stack.append(_MARK)

    def tuple_of(self, length: int) -> None:
        values = [self._pop() for _ in range(length)]
        self.push(tuple(reversed(values)))

    def collect(self, kind: Callable[[list[Any]], Any]) -> None:
        self.push(kind(self._since_mark()))

    def append(self, values: list[Any]) -> None:
        self._top(list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        self._top(dict).update(_pairs(values))

    def remember(self, index: int) -> None:
        if index in self._memo:
            raise _NotPlainError("it remembers two values under one number")
        value = self._pop()
        self._memo[index] = value
        self._stack.append(value)

    def memoize(self, _: object) -> None:
        self.remember(len(self._memo))

    def recall(self, index: int) -> None:
        if index not in self._memo:
            raise _NotPlainError(f"it recalls value {index}, which it never remembered")
        self._stack.append(self._memo[index])

    def name(self, module: object, name: object) -> None:
        known = _GLOBALS.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if known is None:
            raise _NotPlainError(f"it asks for {_shown(module)}.{_shown(name)}, which plain data does not need")
        self.push(_Known(known))

    def name_on_stack(self, _: object) -> None:
        name, module = self._pop(), self._pop()
        self.name(module, name)

    def call(self, _: object) -> None:
        arguments, function = self._pop(), self._pop()
        make = _CALLS.get(function.meaning) if isinstance(function, _Known) else None
        if make is None or type(arguments) is not tuple:
            raise _NotPlainError("it calls what is not to be called")
        self.push(make(*arguments))

    def build(self, _: object) -> None:
        state, target = self._pop(), self._pop()
        if isinstance(target, _NumberKind):
            _set_order(target, state)
        elif isinstance(target, _PendingArray) and target.values is None and type(state) is tuple and len(state) == 5:
            _, shape, kind, fortran, data = state
            target.values = _array(data, kind, shape, "F" if fortran else "C")
        else:
            raise _NotPlainError("it fills in what is no array that numpy wrote")
        self.push(target)


def _pairs(values: list[Any]) -> dict[Any, Any]:
    """Keys and values in turn; only text is a key, as nothing else is in the published files."""
    keys = values[::2]
    if len(values) % 2 or not all(type(key) in (str, bytes) for key in keys):
        raise _NotPlainError("a dictionary whose keys are not text")
    return dict(zip(keys, values[1::2], strict=True))


def _text(value: object) -> object:
    return value.decode("latin1") if type(value) is bytes else value


def _shown(value: object) -> str:
    """For a message: text, cut; of anything else, which may be nested without end, only what it is."""
    return value[:80] if type(value) is str else type(value).__name__


def _begun_array(kind: object, shape: object, code: object) -> _PendingArray:
    """What numpy's `_reconstruct` makes before the pickle fills it."""
    if not isinstance(kind, _Known) or kind.meaning != "array" or shape != (0,) or _text(code) != "b":
        raise _NotPlainError("an array that numpy did not write")
    return _PendingArray()


def _number_kind(code: object, align: object = 0, copy: object = 0) -> _NumberKind:
    text = _text(code)
    if text not in _KINDS:
        raise _NotPlainError(f"an array of {_shown(text)}; read are {', '.join(_KINDS)}")
    return _NumberKind(str(text))


def _set_order(kind: _NumberKind, state: object) -> None:
    """A dtype's state says its byte order; everything else in it is for kinds that are not read."""
    if type(state) is not tuple or len(state) != 8 or state[0] not in (1, 2, 3):
        raise _NotPlainError("a kind of number with a state of its own")
    order, rest = _text(state[1]), state[2:]
    if order not in ("<", ">", "|", "=") or rest != (None, None, None, -1, -1, 0):
        raise _NotPlainError("a kind of number with a state of its own")
    kind.order = str(order)


def _whole_array(data: object, kind: object, shape: object, order: object) -> _PendingArray:
    """What numpy's `_frombuffer` makes in pickles of protocol 5."""
    return _PendingArray(_array(data, kind, shape, order))


def _array(data: object, kind: object, shape: object, order: object) -> np.ndarray[Any, Any]:
    if type(data) is not bytes or not isinstance(kind, _NumberKind) or order not in ("C", "F"):
        raise _NotPlainError("an array that numpy did not write")
    if type(shape) is not tuple or len(shape) > 8 or not all(type(side) is int and side >= 0 for side in shape):
        raise _NotPlainError("an array whose shape is no tuple of a few whole numbers")
    dtype = kind.dtype()
    if math.prod(shape) * dtype.itemsize != len(data):
        raise _NotPlainError(f"an array of shape {shape} and {len(data)} bytes")
    if math.prod(side for side in shape if side) > LARGEST_FILE:
        raise _NotPlainError(f"an array of shape {shape}")
    return np.frombuffer(data, dtype).reshape(shape, order="C" if order == "C" else "F")


def _encoded(text: object, encoding: object) -> bytes:
    """How Python 3 writes bytes into old pickle protocols."""
    if type(text) is not str or encoding != "latin1":
        raise _NotPlainError(f"bytes written as {_shown(encoding)}")
    return text.encode("latin1")


def _finished(value: Any) -> Any:
    """What the program made, with arrays in place; one level of lists and dictionaries, as the published files have."""
    if type(value) is dict:
        return {key: _entry(item) for key, item in value.items()}
    return _entry(value)


def _entry(value: Any) -> Any:
    if type(value) is list:
        return [_plain(item) for item in value]
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, _PendingArray) and value.values is not None:
        return value.values
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    raise _NotPlainError(f"it holds a {type(value).__name__} where published files have numbers, text or an array")


_CALLS: dict[str, Callable[..., Any]] = {
    "begin array": _begun_array,
    "whole array": _whole_array,
    "kind of number": _number_kind,
    "bytes": _encoded,
}
_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, argument: None),
    "MARK": _Machine.mark,
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"), _Machine.push),
    **dict.fromkeys(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _Machine.push),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _Machine.push_bytes),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), _Machine.push_bytes),
    "EMPTY_TUPLE": lambda machine, _: machine.tuple_of(0),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "TUPLE": lambda machine, _: machine.collect(tuple),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "LIST": lambda machine, _: machine.collect(list),
    "APPEND": lambda machine, _: machine.append([machine._pop()]),
    "APPENDS": lambda machine, _: machine.append(machine._since_mark()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "DICT": lambda machine, _: machine.collect(_pairs),
    "SETITEM": lambda machine, _: machine.set_items([machine._pop(), machine._pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.set_items(machine._since_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.remember),
    "MEMOIZE": _Machine.memoize,
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.recall),
    "GLOBAL": lambda machine, argument: machine.name(*argument.split(" ", 1)),
    "STACK_GLOBAL": _Machine.name_on_stack,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}
