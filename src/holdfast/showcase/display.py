"""What a person sees in the terminal: progress while it runs, a table at the end."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from holdfast import report
from holdfast.showcase.contestants import Contestant
from holdfast.showcase.crew import Message
from holdfast.showcase.worker import Failure

_SMOOTHING = 0.1


class Live:
    """One line for each contestant: how far, accuracy so far, resets, time left; and one line for the whole."""

    def __init__(self, console: Console, lineup: list[Contestant], steps: int, workers: int) -> None:
        self._console, self._steps, self._workers = console, steps, workers
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}", justify="right"),
            TextColumn("{task.fields[resets]}", justify="right"),
            TextColumn("{task.fields[left]}", justify="right"),
            console=console,
        )
        self._costs = {contestant.key: contestant.cost for contestant in lineup}
        self._labels = {contestant.key: contestant.label for contestant in lineup}
        self._tasks = {key: self._add(label, steps) for key, label in self._labels.items()}
        self._all = self._add("[bold]all", steps * len(lineup))
        self._pace: dict[str, float] = {}
        self._left = dict.fromkeys(self._tasks, steps)

    def _add(self, label: str, total: int) -> TaskID:
        return self._progress.add_task(label, total=total, accuracy="", resets="", left="")

    def __call__(self, message: Message) -> None:
        """Show what a worker said."""
        if isinstance(message, Failure):
            self._console.print(f"[red]{self._labels[message.key]} failed:[/] {message.reason}", highlight=False)
            return
        key, pace = message.key, self._pace.get(message.key)
        if message.seconds:
            self._pace[key] = message.seconds if pace is None else pace + _SMOOTHING * (message.seconds - pace)
        self._left[key] = self._steps - message.step
        self._progress.update(
            self._tasks[key],
            completed=message.step,
            accuracy=f"{message.correct / message.seen:6.1%} right" if message.seen else "",
            resets=f"{message.resets} resets",
            left=_clock(self._pace[key] * self._left[key]) if key in self._pace else "",
        )
        self._progress.update(
            self._all,
            completed=sum(self._steps - left for left in self._left.values()),
            left=_clock(self._total_left()),
        )

    def finished(self, key: str, track: report.Track) -> None:
        """Show a contestant that needs no process: all of it is on disk."""
        self._left[key] = 0
        resets = int((track.reset_fraction > 0).sum())
        self._progress.update(
            self._tasks[key],
            completed=self._steps,
            accuracy=f"{track.overall:6.1%} right",
            resets=f"{resets} resets",
            left="done before",
        )

    def _total_left(self) -> float:
        """From the paces known so far; a contestant that has not started is judged by its cost."""
        if not self._pace:
            return float("nan")
        unit = sum(self._pace.values()) / sum(self._costs[key] for key in self._pace)
        spent = [left * self._pace.get(key, unit * self._costs[key]) for key, left in self._left.items()]
        return max(sum(spent) / self._workers, *spent)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def results(story: report.Story) -> Table:
    """The headline table, for the terminal."""
    rows = report.standings(story)
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
            str(row.resets),
            row.verdict,
        )
    return table


def _clock(seconds: float) -> str:
    if seconds != seconds:
        return ""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d} left"
