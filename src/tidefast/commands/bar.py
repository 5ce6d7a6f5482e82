"""How far a long command is: a bar on a screen, and a line now and then in a file or a pipe."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from tidefast import bench

_PAUSE = 30.0
"""Seconds between two lines."""


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with what is done and what there is; the bar goes away at the end."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with _shown(*columns, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextlib.contextmanager
def of_run(label: str, batches: int | None) -> Iterator[Callable[[int, int, float], None]]:
    """For one run: a function to call with the batches seen, those of the whole stream, and the accuracy so far."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with _shown(*columns, TextColumn("{task.fields[accuracy]}"), TimeRemainingColumn()) as shown:
        task = shown.add_task(label, total=batches, accuracy="")
        line = _Lines(shown)

        def show(seen: int, total: int, accuracy: float) -> None:
            percent = f"{100 * accuracy:.1f} %"
            shown.update(task, completed=seen, total=total, accuracy=percent)
            line.put(f"{label}: {seen} of {total} batches, {percent}")

        yield show


@contextlib.contextmanager
def of_runs() -> Iterator[Callable[[list[bench.Progress]], None]]:
    """For sweeps: a function to call with how far each run is."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    with _shown(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as shown:
        task = shown.add_task("batches", total=None)
        line = _Lines(shown)

        def show(progress: list[bench.Progress]) -> None:
            finished = sum(status.finished for status in progress)
            runs = f"{finished} of {len(progress)} runs finished"
            seen, total = sum(status.seen for status in progress), sum(status.total for status in progress)
            shown.update(task, description=f"{runs}; batches", completed=seen, total=total or None)
            line.put(f"{runs}; {seen} of {total} batches" if total else runs, topic=finished)

        yield show


@contextlib.contextmanager
def _shown(*columns: ProgressColumn, transient: bool = False) -> Iterator[Progress]:
    """A bar, where there is a screen."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=transient, disable=not console.is_terminal) as progress:
        yield progress


class _Lines:
    """Lines on the error stream where there is no screen: one when the topic changes, and every half a minute."""

    def __init__(self, shown: Progress) -> None:
        self._silent, self._next, self._topic = not shown.disable, time.monotonic() + _PAUSE, None

    def put(self, text: str, topic: Any = None) -> None:
        if self._silent or (topic == self._topic and time.monotonic() < self._next):
            return
        self._next, self._topic = time.monotonic() + _PAUSE, topic
        print(text, file=sys.stderr, flush=True)
