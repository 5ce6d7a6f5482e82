"""The results of one contestant on disk: one JSON object a line, one line a batch, only ever appended to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Line:
    """What happened on one batch. All but `seconds` is a function of the settings and the contestant."""

    step: int
    """1 for the first batch."""
    domain: str
    count: int
    correct: int
    predicted: list[int]
    """How often each class was predicted."""
    labels: list[int]
    """How often each class was there."""
    loss: float | None
    selected: int
    concentration: float | None
    threshold: float | None
    inconsistency: float | None
    penalty: float | None
    reset_fraction: float
    seconds: float


_FIELDS = frozenset(field.name for field in fields(Line))


def read(path: Path) -> list[Line]:
    """The whole lines of a journal, in order; a last line that was cut off by a kill is left out."""
    return [line for line, _ in _scan(path)]


def _scan(path: Path) -> Iterator[tuple[Line, int]]:
    """Lines in order, each with the position of its end in the file; stops at the first that is not whole."""
    if not path.is_file():
        return
    end = 0
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                parsed: dict[str, Any] = json.loads(raw)
            except ValueError:
                return
            if not raw.endswith(b"\n") or not isinstance(parsed, dict) or parsed.keys() != _FIELDS:
                return
            line = Line(**parsed)
            if line.step != number:
                return
            end += len(raw)
            yield line, end


class Journal:
    """Appends lines to a file, from a given number of lines on; whatever followed them is cut off."""

    def __init__(self, path: Path, keep: int) -> None:
        end, kept = 0, 0
        for line, position in _scan(path):
            if line.step > keep:
                break
            end, kept = position, line.step
        if kept < keep:
            raise ValueError(f"{path} holds {kept} whole lines, expected at least {keep}")
        self._file = open(path, "ab")  # noqa: SIM115 (open for the journal's lifetime)
        self._file.truncate(end)

    def append(self, line: Line) -> None:
        """Add a line; it is in the file, though perhaps not yet on the disk, when this returns."""
        self._file.write(json.dumps(asdict(line), allow_nan=False).encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Return when every line is on the disk."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
