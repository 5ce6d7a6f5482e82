"""What a person sees in the terminal: progress while it runs, a table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from tidefast import bench, report
from tidefast.bench import Progress
from tidefast.demo.contestants import Contestant


class Live:
    """One line for each contestant: how far, accuracy so far, resets; and one for the whole, with the time left."""

    def __init__(self, console: Console, out: Path, contestants: list[Contestant]) -> None:
        self._out = out
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", justify="right"),
            console=console,
        )
        self._costs = {contestant.key: contestant.cost for contestant in contestants}
        self._tasks = {c.key: self._bars.add_task(c.label, total=None, note="") for c in contestants}
        self._all = self._bars.add_task("[bold]all", total=None, note="")
        self._seen: dict[str, int] = {}
        self._began: dict[str, int] = {}
        self._started = time.monotonic()

    def show(self, progress: Mapping[str, Progress]) -> None:
        """Show how far everybody is."""
        for key, status in progress.items():
            self._began.setdefault(key, status.seen)
            if status.seen and status.seen != self._seen.get(key):
                self._seen[key] = status.seen
                note = self._accuracy(status) + (", done before" if self._began[key] == status.total else "")
                self._bars.update(self._tasks[key], completed=status.seen, total=status.total, note=note)
        self._bars.update(
            self._all,
            completed=sum(status.seen for status in progress.values()),
            total=sum(status.total for status in progress.values()),
            note=self._left(progress),
        )

    def _accuracy(self, status: Progress) -> str:
        run = bench.load(self._out / status.experiment.key)
        return f"{run.accuracy:6.1%} right, {len(run.resets):3} resets"

    def _left(self, progress: Mapping[str, Progress]) -> str:
        """Work is batches times their cost; what is left of it takes as long as what was done, in proportion."""
        done = sum(self._costs[key] * (status.seen - self._began[key]) for key, status in progress.items())
        left = sum(self._costs[key] * (status.total - status.seen) for key, status in progress.items())
        if not done or not left:
            return ""
        seconds = round((time.monotonic() - self._started) * left / done)
        return f"{seconds // 60}:{seconds % 60:02d} left"

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


def results(content: report.ReportData) -> Table:
    """The headline table, for the terminal."""
    rows = report.headline_rows(content)
    partial = any(row.batches < row.total for row in rows)
    table = Table(title="accuracy, %", title_justify="left")
    table.add_column("contestant")
    for heading in (*(("batches",) if partial else ()), "overall", "last quarter", "lead, first to last quarter"):
        table.add_column(heading, justify="right")
    table.add_column("resets", justify="right")
    table.add_column("verdict")
    for row in rows:
        table.add_row(
            row.label,
            *((f"{row.batches} of {row.total}",) if partial else ()),
            report.percent(row.overall),
            report.percent(row.last_quarter),
            row.lead_text,
            row.resets_text,
            row.verdict,
        )
    return table
