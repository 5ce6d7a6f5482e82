"""What an analysis is: the runs that it needs, and what it finds in them."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import Run
from tidefast.core.files import write_atomically
from tidefast.core.registry import Registry
from tidefast.paper import figure
from tidefast.paper.scale import Setting
from tidefast.report import formats
from tidefast.report.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Frame = Mapping[str, Sequence[Any]]
"""Columns of equal length."""


@dataclass(frozen=True)
class Finding:
    """What an analysis found."""

    frames: Mapping[str, Frame]
    """The data behind the figure, by name; each becomes a CSV file."""
    sheets: tuple[Sheet, ...]
    """The tables."""
    draw: Callable[[], Figure]
    remarks: tuple[str, ...] = ()
    """What the data say, in sentences that are made from the numbers."""

    def write(self, folder: Path, name: str) -> list[Path]:
        """Write data, tables and figure into a folder, as `name.png` and so on; returns the files."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for key, frame in self.frames.items():
            path = folder / (f"{name}.csv" if len(self.frames) == 1 else f"{name}-{key}.csv")
            write_atomically(path, _csv(frame).encode())
            written.append(path)
        text = formats.render(self.sheets, "markdown") + "".join(f"\n- {remark}" for remark in self.remarks) + "\n"
        write_atomically(folder / f"{name}.md", text.encode())
        with figure.look():
            pictures = figure.save(self.draw(), folder / name)
        return [*written, folder / f"{name}.md", *pictures]


class Analysis(ABC):
    """One question about runs."""

    name: ClassVar[str] = ""
    title: ClassVar[str]
    """What it shows, in a line."""
    paper: ClassVar[tuple[str, ...]] = ()
    """The paper's tables and figures that it is the counterpart of: `table 8`, `figure collapse`."""

    @abstractmethod
    def experiments(self, setting: Setting) -> list[Experiment]:
        """What must be run for it."""

    def accepts(self, run: Run) -> bool:
        """Whether it can say anything about a run; of a folder of runs, only these are evaluated."""
        return True

    @abstractmethod
    def evaluate(self, runs: list[Run]) -> Finding:
        """What the runs say. They are finished, at least one, in the order of `experiments` or of their folders."""


registry: Registry[Analysis] = Registry("analysis")


def frame(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    """Rows as columns with names.

    >>> frame(("batch", "accuracy"), [(1, 0.5), (2, 0.75)])
    {'batch': [1, 2], 'accuracy': [0.5, 0.75]}
    """
    cells = list(rows)
    return {name: [row[at] for row in cells] for at, name in enumerate(names)}


def _csv(frame: Frame) -> str:
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(frame)
    writer.writerows(zip(*frame.values(), strict=True))
    return sink.getvalue()
