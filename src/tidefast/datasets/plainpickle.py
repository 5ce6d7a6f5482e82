"""Pickles of plain data: dictionaries, lists, numbers, text and numpy arrays, and nothing that runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidefast.datasets.errors import DatasetError


def _empty_array(kind: type, shape: tuple[int, ...], code: object) -> np.ndarray[Any, Any]:
    """What numpy's `_reconstruct` makes before the pickle fills it."""
    if kind is not np.ndarray or shape != (0,):
        raise pickle.UnpicklingError("an array that numpy did not write")
    return np.ndarray(0, np.int8)


def _array(buffer: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: str) -> np.ndarray[Any, Any]:
    """What numpy's `_frombuffer` makes in pickles of protocol 5."""
    if order not in ("C", "F"):
        raise pickle.UnpicklingError(f"an array in memory order {order!r}")
    return np.frombuffer(buffer, dtype).reshape(shape, order="C" if order == "C" else "F")


def _dtype(kind: str | bytes, align: int = 0, copy: int = 0) -> np.dtype[Any]:
    """Old pickles pass numbers where numpy now wants truth values."""
    return np.dtype(kind.decode() if isinstance(kind, bytes) else kind, bool(align), bool(copy))


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into old pickle protocols."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes written as {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.numeric", "_frombuffer"): _array,
    ("numpy._core.numeric", "_frombuffer"): _array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which plain data does not need") from None


def read_pickle(path: Path) -> Any:
    """The content of a pickle, as far as it is plain data; anything else is a DatasetError and is not run."""
    try:
        with open(path, "rb") as file:
            return _PlainUnpickler(file, encoding="bytes").load()
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise DatasetError(f"{path} is truncated, damaged or not a pickle of plain data: {error}") from error
