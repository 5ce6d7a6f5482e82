"""The accuracy matrix of CCC: how well a model does under any two corruptions at any two severities."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidefast.core.bundle import bundled_1k
from tidefast.core.files import write_atomically
from tidefast.corruptions.names import CCC, canonical
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.plainpickle import read_pickle
from tidefast.errors import FORMER_NAME, of_former_name
from tidefast.streams.ccc import GRID, PathCell, find_path, synthetic_matrix

BUNDLED, BUNDLED_1K = "bundled_ccc.npz", "ccc.npz"

UNKNOWN, MEASURED, INTERPOLATED, ASSUMED = range(4)
"""How a cell is known: not at all, from images, from its neighbours, or set without looking (a row at chance)."""

_FORMAT = "tidefast accuracy matrix 1"
_KEY = re.compile(r"n1_(.+)_n2_(.+)")
_CCC_NAMES = {canonical(name): name for name in CCC}


@dataclass(frozen=True, eq=False)
class Matrix:
    """Accuracies in percent [n, n, 21, 21]: first type, second type, severity of the first, severity of the second.

    Severities are i/4 for i = 0..20; the second corruption is applied to the result of the first. Pairs that nobody
    knows, such as a type with itself, are NaN. `cells` says of each accuracy how it is known. `model`, `fingerprint`
    (of its weights), `images` (the set) and `count` (how many of it) say where the numbers come from.

    >>> matrix = Matrix.synthetic(("fog", "snow", "jpeg"))
    >>> matrix.types, float(matrix.pair("fog", "jpeg")[0, 0])
    (('fog', 'snow', 'jpeg'), 76.0)
    >>> path = matrix.path("fog", "jpeg", target=40)
    >>> path[0], path[-1], round(float(matrix.along("fog", "jpeg", path).mean()), 2)
    ((7, 0), (0, 7), 39.91)
    """

    types: tuple[str, ...]
    accuracies: npt.NDArray[np.float64] = field(repr=False)
    cells: npt.NDArray[np.uint8] = field(repr=False)
    model: str = ""
    fingerprint: str = ""
    images: str = ""
    count: int = 0
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    _places: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        types = tuple(_spelling(name) for name in self.types)
        if len(set(types)) < len(types) or len(types) < 2:
            raise ValueError(f"a matrix needs at least two different types, got {list(types)}")
        shape = (len(types), len(types), GRID, GRID)
        for name in ("accuracies", "cells"):
            given = getattr(self, name).shape
            if given != shape:
                raise ValueError(f"{name} of {len(types)} types must be {list(shape)}, got {list(given)}")
        known = self.accuracies[np.isfinite(self.accuracies)]
        if known.size and not (known.min() >= 0 and known.max() <= 100):
            raise ValueError(f"accuracies must lie in 0..100 percent, got {known.min():g}..{known.max():g}")
        object.__setattr__(self, "types", types)
        object.__setattr__(self, "_places", {canonical(name): place for place, name in enumerate(types)})

    def pair(self, first: str, second: str) -> npt.NDArray[np.float64]:
        """Accuracies [21, 21] of one ordered pair; rows are severities of the first."""
        try:
            accuracies: npt.NDArray[np.float64] = self.accuracies[
                self._places[canonical(first)], self._places[canonical(second)]
            ]
        except KeyError:
            missing = [name for name in (first, second) if canonical(name) not in self._places]
            raise ValueError(
                f"the accuracy matrix does not know {' or '.join(map(repr, missing))}; its types: "
                f"{', '.join(self.types)}. Measure one that does: tidefast calibrate --types ..."
            ) from None
        if not np.isfinite(accuracies).all():
            raise ValueError(f"the accuracy matrix has no complete entry for {first!r} then {second!r}")
        return accuracies

    def pairs(self, types: Iterable[str] | None = None) -> Iterator[tuple[str, str]]:
        """All ordered pairs of different types, of the matrix or of some."""
        chosen = self.types if types is None else tuple(types)
        return ((first, second) for first in chosen for second in chosen if canonical(first) != canonical(second))

    def alone(self, name: str) -> npt.NDArray[np.float64]:
        """Accuracies [21] under one type alone."""
        other = next(other for other in self.types if canonical(other) != canonical(name))
        return self.pair(name, other)[:, 0]

    def path(self, first: str, second: str, target: float) -> list[PathCell]:
        """CCC's path from one type to another with a mean accuracy near the target; see `find_path`."""
        return find_path(self.pair(first, second), target)

    def along(self, first: str, second: str, path: Sequence[PathCell]) -> npt.NDArray[np.float64]:
        """The accuracies of the cells of a path."""
        rows, columns = np.array(path).T
        met: npt.NDArray[np.float64] = self.pair(first, second)[rows, columns]
        return met

    def write(self, path: str | os.PathLike[str]) -> None:
        """Store as one .npz of plain arrays, whole or not at all; the same matrix makes the same bytes."""
        about = {
            "format": _FORMAT,
            "types": list(self.types),
            "severities": [i / 4 for i in range(GRID)],
            "model": self.model,
            "fingerprint": self.fingerprint,
            "images": self.images,
            "count": self.count,
            "settings": self.settings,
        }
        content = io.BytesIO()
        np.savez_compressed(
            content,
            about=np.array(json.dumps(about, sort_keys=True)),
            accuracies=self.accuracies.astype("<f8"),
            cells=self.cells,
        )
        write_atomically(path, content.getvalue())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Matrix:
        """The matrix that `write` stored; whatever is wrong with the file is a DatasetError that names it."""
        try:
            return cls._of_bytes(Path(path).read_bytes(), str(path))
        except FileNotFoundError:
            raise DatasetError(
                f"there is no accuracy matrix {path}: measure one with tidefast calibrate --out {path}, or convert "
                "the published one with tidefast calibrate --from-pickle FILE"
            ) from None

    @classmethod
    def bundled(cls) -> Matrix:
        """That of the bundled residual network on the bundled images, for all fourteen types of CCC.

        >>> matrix = Matrix.bundled()
        >>> matrix.model, len(matrix.types), bool(matrix.pair("fog", "snow")[0, 0] > 85)
        ('bundled-resnet', 14, True)
        """
        return cls._of_bytes(resources.files("tidefast.streams").joinpath(BUNDLED).read_bytes(), BUNDLED)

    @classmethod
    def bundled_1k(cls) -> Matrix:
        """That of bundled-lite0 on the bundled photos; pairs of the four types of the hard level were measured.

        >>> Matrix.bundled_1k().model
        'bundled-lite0'
        """
        return cls._of_bytes(bundled_1k(BUNDLED_1K), BUNDLED_1K)

    @classmethod
    def synthetic(cls, types: Sequence[str] = CCC) -> Matrix:
        """`synthetic_matrix` for every pair: nothing in it was measured, so streams along it are not calibrated."""
        accuracies = np.tile(synthetic_matrix(), (len(types), len(types), 1, 1))
        accuracies[np.diag_indices(len(types))] = np.nan
        return cls(tuple(types), accuracies, np.full(accuracies.shape, ASSUMED, np.uint8), model="synthetic")

    @classmethod
    def of_pickle(cls, path: str | os.PathLike[str]) -> Matrix:
        """The published matrix: a pickled dictionary of arrays [21, 21] under "n1_<first>_n2_<second>".

        A pickle can hold code; this reads plain data only and refuses everything else.
        """
        try:
            content = read_pickle(Path(path))
        except FileNotFoundError:
            raise DatasetError(f"there is no file {path}") from None
        if not isinstance(content, dict) or not content:
            raise DatasetError(
                f"{path} holds {type(content).__name__}, expected a dictionary of accuracies under keys such as "
                "'n1_fog_n2_snow'"
            )
        pairs = dict(_published_pair(path, key, value) for key, value in content.items())
        present = {name for pair in pairs for name in pair}
        order = [canonical(name) for name in CCC]
        types = sorted(present, key=lambda name: (order.index(name) if name in order else len(order), name))
        accuracies = np.full((len(types), len(types), GRID, GRID), np.nan)
        for (first, second), values in pairs.items():
            if first != second:
                accuracies[types.index(first), types.index(second)] = values
        if np.nanmax(accuracies, initial=0.0) <= 1:
            raise DatasetError(f"{path} holds no accuracy above 1: expected percent, not shares")
        cells = np.where(np.isfinite(accuracies), MEASURED, UNKNOWN).astype(np.uint8)
        try:
            return cls(tuple(types), accuracies, cells, model="published", settings={"source": Path(path).name})
        except ValueError as error:
            raise DatasetError(f"{path}: {error}") from error

    @classmethod
    def _of_bytes(cls, content: bytes, name: str) -> Matrix:
        if not content.startswith(b"PK"):
            raise DatasetError(f"{name} is damaged or not an accuracy matrix of tidefast: it is no .npz archive")
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                about = json.loads(str(stored["about"][()]))
                accuracies, cells = stored["accuracies"].astype(np.float64), stored["cells"].astype(np.uint8)
            if str(about["format"]).startswith(FORMER_NAME):
                raise DatasetError(of_former_name(name))
            if about["format"] != _FORMAT:
                raise DatasetError(f"{name} is of the format {about['format']!r}, expected {_FORMAT!r}")
            named = {key: about[key] for key in ("model", "fingerprint", "images", "count", "settings")}
            return cls(tuple(about["types"]), accuracies, cells, **named)
        except DatasetError:
            raise
        # np.load raises these for whatever is no archive, a damaged one, or one with pickles inside.
        except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise DatasetError(f"{name} is damaged or not an accuracy matrix of tidefast: {error}") from error


def matrix_of(source: str | os.PathLike[str] | Matrix) -> Matrix:
    """The matrix a caller meant: one at hand, "bundled", "bundled-1k", "synthetic", or a file (.npz or pickle).

    >>> matrix_of("synthetic").model
    'synthetic'
    """
    if isinstance(source, Matrix):
        return source
    if source == "bundled":
        return Matrix.bundled()
    if source == "bundled-1k":
        return Matrix.bundled_1k()
    if source == "synthetic":
        return Matrix.synthetic()
    return Matrix.of_pickle(source) if Path(source).suffix in (".pickle", ".pkl") else Matrix.read(source)


def interpolate(matrix: Matrix, knots: Sequence[int]) -> Matrix:
    """Fill the cells between rows and columns `knots` bilinearly; NaN stays where a corner is not known.

    >>> coarse = Matrix.synthetic(("fog", "snow"))
    >>> fine = interpolate(coarse, [0, 10, 20])
    >>> ends = coarse.pair("fog", "snow")[[0, 10], 0]
    >>> bool(np.isclose(fine.pair("fog", "snow")[5, 0], ends.mean()))
    True
    """
    grid = np.arange(GRID)
    left = np.clip(np.searchsorted(knots, grid, side="right") - 1, 0, len(knots) - 2)
    at = np.asarray(knots)
    share = (grid - at[left]) / (at[left + 1] - at[left])
    weights = np.zeros((GRID, len(knots)))
    weights[grid, left] = 1 - share
    weights[grid, left + 1] += share
    coarse = matrix.accuracies[:, :, at[:, None], at]
    filled = np.einsum("ia,xyab,jb->xyij", weights, coarse, weights)
    between = ~np.isin(grid, at)
    new = between[:, None] | between[None, :]
    accuracies = np.where(new, filled, matrix.accuracies)
    cells = np.where(new & np.isfinite(accuracies), INTERPOLATED, matrix.cells).astype(np.uint8)
    return dataclasses.replace(matrix, accuracies=accuracies, cells=cells)


def _spelling(name: str) -> str:
    """A type as CCC spells it."""
    return _CCC_NAMES.get(canonical(name), canonical(name))


def _published_pair(path: object, key: object, value: object) -> tuple[tuple[str, str], npt.NDArray[np.float64]]:
    text = key.decode("latin1") if isinstance(key, bytes) else key
    parsed = _KEY.fullmatch(text) if isinstance(text, str) else None
    if parsed is None:
        raise DatasetError(f"{path} holds the key {key!r}, expected keys such as 'n1_fog_n2_snow'")
    try:
        pair = canonical(parsed[1]), canonical(parsed[2])
        values = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{path}, entry {text!r}: {error}") from error
    if values.shape != (GRID, GRID) or not np.isfinite(values).all():
        raise DatasetError(
            f"{path}, entry {text!r}: expected finite accuracies [{GRID}, {GRID}], got shape {list(values.shape)}"
        )
    return pair, values
