"""Measure an accuracy matrix, cell by cell; what was measured survives a kill."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tidefast.core.files import write_atomically
from tidefast.core.network import logits_of
from tidefast.core.snapshot import digest_of
from tidefast.core.validation import require_count, require_number
from tidefast.corruptions import CCC, corrupt
from tidefast.corruptions.names import canonical
from tidefast.corruptions.severity import Scale
from tidefast.datasets import LabelledImages, as_tensor, require_match
from tidefast.errors import TidefastError
from tidefast.models.images import class_names, number_of_classes
from tidefast.streams.ccc import CELLS_PER_SEVERITY, GRID, noise_types
from tidefast.streams.images import Data, labelled_images, nearest_scale
from tidefast.streams.jpeg import QUALITY, stored
from tidefast.streams.matrix import ASSUMED, MEASURED, UNKNOWN, Matrix, interpolate
from tidefast.streams.pool import mapped

STRIDES = (1, 2, 4, 5)

_FORMAT = "tidefast calibration 1"
_SHARE = 0.02  # of the time that saving may take
_NONE = -1  # in place of a type: no corruption

Knot = tuple[int, int, int, int]
"""First type (or _NONE) at i/4, second type (or _NONE) at j/4: (first, i, second, j)."""

_CLEAN: Knot = (_NONE, 0, _NONE, 0)

CellProgress = Callable[[int, int], None]
"""Called with the cells that are done and those there are."""


class CalibrationError(TidefastError, ValueError):
    """A measurement cannot be made, or cannot go on from the file it is to go on from."""


def measure(
    model: nn.Module,
    data: Data | None = None,
    types: str | float | Sequence[str] = CCC,
    *,
    pairs: str | float | Sequence[str] | None = None,
    images: int | None = None,
    stride: int = 4,
    stop_at_chance: bool = False,
    stop_below: float | None = None,
    jpeg: int | Literal["auto"] | None = "auto",
    scale: Scale | None = None,
    seed: int = 0,
    batch: int = 64,
    workers: int = 0,
    keep: str | os.PathLike[str] | None = None,
    progress: CellProgress | None = None,
    model_name: str = "",
    data_name: str = "",
) -> Matrix:
    """The accuracies of a model (images in [0, 1] to logits) under each pair of `types` (or those of a level).

    `pairs`: only those of these types (or of a level) are measured; where another type takes part, what each of the two
    leaves of the clean accuracy multiplies. `images`: so many of `data`, drawn with `seed`; None for all. They are held
    in memory. `stride`: every so many rows and columns of the 21 are measured, those between are interpolated. One
    corruption alone is measured once and serves all pairs. `stop_at_chance`: the rest of a row that has come down to
    chance is taken to be chance; `stop_below`: likewise that of a row that has fallen so far, where no path will go.
    `jpeg`: quality of the file that CCC makes of each image; "auto" is 85, but none for images of about 32 pixels,
    whose data sets do not store JPEG. There is no crop.
    `keep`: a file in which finished cells are kept; the same call goes on from it, to the same bits.

    >>> from tidefast import models
    >>> matrix = measure(models.load("bundled-resnet"), None, ["fog", "contrast"], images=20)
    >>> matrix.pair("fog", "contrast").shape, bool(matrix.pair("fog", "contrast")[20, 20] < 60)
    ((21, 21), True)
    """
    if stride not in STRIDES:
        raise ValueError(f"stride must be one of {', '.join(map(str, STRIDES))}, got {stride!r}")
    require_count("batch", batch)
    require_count("workers", workers, low=0)
    chosen = tuple(dict.fromkeys(canonical(name) for name in noise_types(types)))
    paired = chosen if pairs is None else tuple(canonical(name) for name in noise_types(pairs))
    if not set(paired) <= set(chosen):
        raise ValueError(f"pairs must be of the types that are measured, {', '.join(chosen)}, got {', '.join(paired)}")
    everything = labelled_images(data)
    some = _subset(everything, images, seed)
    scale = nearest_scale(everything) if scale is None else scale
    quality = (None if scale == "cifar" else QUALITY) if jpeg == "auto" else jpeg
    if quality is not None:
        require_number("jpeg", quality, 1, 100)
    part = everything[some]
    require_match(everything.classes, number_of_classes(model, as_tensor(part.images[:1])), class_names(model))
    classes = len(everything.classes)
    settings = {
        "types": list(chosen),
        "model": digest_of(model.state_dict()),
        "images": _digest_of_images(part.images, part.labels),
        "stride": stride,
        "stop_at_chance": stop_at_chance,
        "jpeg": quality,
        "scale": scale,
        "seed": seed,
        "batch": batch,
    }
    if pairs is not None:
        settings["pairs"] = list(paired)
    chance = len(part) / classes
    floor = chance if stop_at_chance else -1.0
    if stop_below is not None:
        require_number("stop_below", stop_below, 0, 100)
        settings["stop_below"] = stop_below
        floor = max(floor, len(part) * stop_below / 100)
    bench = _Bench(model, part.images, part.labels, some, chosen, scale, seed, quality, batch)
    counts = _CorrectCounts(len(chosen), tuple(map(chosen.index, paired)), stride, len(part), floor, chance)
    keeper = _Keeper(keep, settings, counts.correct)
    report = progress or (lambda done, total: None)
    report(len(counts.correct), counts.total)
    training = model.training
    model.eval()
    try:
        for rows in (counts.alone(), counts.rows()):
            for answer in mapped(_measured, bench, rows, workers):
                counts.correct.update(answer)
                keeper.save(final=False)
                report(counts.known(), counts.total)
    finally:
        model.train(training)
        keeper.save(final=True)
    return counts.matrix(chosen, stride, model_name, data_name, settings)


@dataclass
class _Bench:
    """A model and images, and what the model makes of them under a cell."""

    model: nn.Module
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    types: tuple[str, ...]
    scale: Scale
    seed: int
    jpeg: int | None
    batch: int
    _first: tuple[tuple[int, int], npt.NDArray[np.uint8]] | None = None

    def correct(self, knot: Knot) -> int:
        """How many images the model knows."""
        first, i, second, j = knot
        images = self._corrupted(self._after_first(first, i), second, j)
        if self.jpeg is not None:
            images = stored(images, self.jpeg)
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        correct = 0
        with torch.inference_mode():
            for start in range(0, len(images), self.batch):
                part = torch.from_numpy(images[start : start + self.batch]).permute(0, 3, 1, 2)
                logits = logits_of(self.model(part.to(device, torch.float32).div_(255)))
                labels = torch.from_numpy(self.labels[start : start + self.batch])
                correct += int((logits.argmax(1).cpu() == labels).sum())
        return correct

    def _after_first(self, first: int, i: int) -> npt.NDArray[np.uint8]:
        # Neighbouring cells share it, and it is half of the work on the images.
        if self._first is None or self._first[0] != (first, i):
            self._first = (first, i), self._corrupted(self.images, first, i)
        return self._first[1]

    def _corrupted(self, images: npt.NDArray[np.uint8], which: int, cell: int) -> npt.NDArray[np.uint8]:
        if which == _NONE or cell == 0:
            return images
        severity = cell / CELLS_PER_SEVERITY
        return corrupt(images, self.types[which], severity, seed=self.seed, scale=self.scale, indices=self.places)


class _KnotRow:
    """Cells to be measured one after the other, up to the first that knows no more than so many images."""

    def __init__(self, knots: Sequence[Knot], floor: float) -> None:
        self.knots, self.floor = knots, floor


def _measured(bench: _Bench, row: _KnotRow) -> dict[Knot, int]:
    answer: dict[Knot, int] = {}
    for knot in row.knots:
        answer[knot] = bench.correct(knot)
        if answer[knot] <= row.floor:
            break
    return answer


class _CorrectCounts:
    """How many images were right in each measured cell, and which cells are still to be measured.

    The rest of a row that has come down to `floor` images is taken to be at `chance`. Pairs are measured of those types
    only that are `paired`.
    """

    def __init__(
        self, types: int, paired: tuple[int, ...], stride: int, images: int, floor: float, chance: float
    ) -> None:
        self.types, self.paired, self.images, self.floor, self.chance = types, paired, images, floor, chance
        self.knots = range(0, GRID, stride)
        self.correct: dict[Knot, int] = {}

    @property
    def total(self) -> int:
        """All cells, of which those in rows that are down need no measuring."""
        inner = len(self.knots) - 1
        return 1 + self.types * inner + len(self.paired) * (len(self.paired) - 1) * inner * inner

    def known(self) -> int:
        """Cells measured, or taken to be at chance."""
        if self.floor < 0:
            return len(self.correct)
        return len(self.correct) + sum(
            len(knots) - len([knot for knot in knots if knot in self.correct])
            for knots in self._pair_rows()
            if self._is_down(knots)
        )

    def alone(self) -> Iterator[_KnotRow]:
        """No corruption, and one alone."""
        knots = [_CLEAN, *((first, i, _NONE, 0) for first in range(self.types) for i in self.knots[1:])]
        return (_KnotRow([knot], -1.0) for knot in knots if knot not in self.correct)

    def rows(self) -> Iterator[_KnotRow]:
        """For each pair and severity of the first: the severities of the second that are missing."""
        for knots in self._pair_rows():
            missing = [knot for knot in knots if knot not in self.correct]
            if missing and not self._is_down(knots):
                yield _KnotRow(missing, self.floor)

    def _pair_rows(self) -> Iterator[list[Knot]]:
        for first in self.paired:
            for i in self.knots[1:]:
                for second in self.paired:
                    if second != first:
                        yield [(first, i, second, j) for j in self.knots[1:]]

    def _is_down(self, knots: Sequence[Knot]) -> bool:
        first, i = knots[0][:2]
        measured = [(first, i, _NONE, 0), *knots]
        return any(self.correct[knot] <= self.floor for knot in measured if knot in self.correct)

    def matrix(
        self, types: Sequence[str], stride: int, model_name: str, data_name: str, settings: dict[str, Any]
    ) -> Matrix:
        """The counts as accuracies, with the cells between them interpolated."""
        n = self.types
        accuracies = np.full((n, n, GRID, GRID), np.nan)
        cells = np.full(accuracies.shape, UNKNOWN, np.uint8)
        for first, second in itertools.permutations(range(n), 2):
            for i, j in itertools.product(self.knots, repeat=2):
                place = first, second, i, j
                accuracies[place], cells[place] = self._known(*place)
        whole = Matrix(
            tuple(types),
            accuracies,
            cells,
            model=model_name,
            fingerprint=settings["model"],
            images=f"{data_name} {settings['images'][:16]}".strip(),
            count=self.images,
            settings={key: value for key, value in settings.items() if key not in ("types", "model", "images")},
        )
        return whole if stride == 1 else interpolate(whole, list(self.knots))

    def _known(self, first: int, second: int, i: int, j: int) -> tuple[float, int]:
        """The accuracy of a cell, and how it is known."""
        active = [(which, cell) for which, cell in ((first, i), (second, j)) if cell]
        knot = (*active[0], *active[1]) if len(active) == 2 else (*active[0], _NONE, 0) if active else _CLEAN
        if knot in self.correct:
            return self._percent(knot), MEASURED
        if first in self.paired and second in self.paired:
            return 100 * self.chance / self.images, ASSUMED
        alone_first, alone_second, clean = (
            self._percent(knot) for knot in ((first, i, _NONE, 0), (second, j, _NONE, 0), _CLEAN)
        )
        return (alone_first * alone_second / max(alone_first, alone_second, clean) if clean else 0.0), ASSUMED

    def _percent(self, knot: Knot) -> float:
        return 100 * self.correct[knot] / self.images


class _Keeper:
    """The file that finished cells are kept in."""

    def __init__(self, path: str | os.PathLike[str] | None, settings: dict[str, Any], correct: dict[Knot, int]) -> None:
        self.path = None if path is None else Path(path)
        self.settings, self.correct = settings, correct
        self._next, self._saved = 0.0, 0
        if self.path is not None and self.path.exists():
            correct.update(self._read(self.path))
            self._saved = len(correct)

    def save(self, *, final: bool) -> None:
        """Write, unless that was done a moment ago."""
        if self.path is None or len(self.correct) == self._saved:
            return
        started = time.monotonic()
        if not final and started < self._next:
            return
        cells = [[*knot, correct] for knot, correct in sorted(self.correct.items())]
        content = {"format": _FORMAT, "settings": self.settings, "cells": cells}
        write_atomically(self.path, json.dumps(content).encode())
        self._saved = len(self.correct)
        finished = time.monotonic()
        self._next = finished + (finished - started) / _SHARE

    def _read(self, path: Path) -> dict[Knot, int]:
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != _FORMAT:
                raise ValueError(f"it is of the format {content['format']!r}")
            settings = content["settings"]
            cells = {(int(a), int(i), int(b), int(j)): int(correct) for a, i, b, j, correct in content["cells"]}
        except (ValueError, KeyError, TypeError) as error:
            raise CalibrationError(
                f"{path} is damaged or holds no measured cells ({error}): delete it to start over"
            ) from error
        other = [name for name in self.settings if settings.get(name) != self.settings[name]]
        if other:
            raise CalibrationError(
                f"{path} holds cells of another measurement (other {', '.join(other)}): delete it to start over, "
                "or write to another file"
            )
        return cells


def _subset(data: LabelledImages, images: int | None, seed: int) -> npt.NDArray[np.int64]:
    """Places in the set of so many images, in their order there."""
    if images is None:
        return np.arange(len(data), dtype=np.int64)
    require_count("images", images)
    if images > len(data):
        raise ValueError(f"images={images} is more than the {len(data)} of the set")
    order = np.random.Generator(np.random.Philox(key=np.array([seed, 0], np.uint64))).permutation(len(data))
    return np.sort(order[:images]).astype(np.int64)


def _digest_of_images(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(str(images.shape).encode())
    digest.update(np.ascontiguousarray(images).data)
    digest.update(labels.astype("<i8").tobytes())
    return digest.hexdigest()
