"""How far a long command is, on a screen; into a file or a pipe nothing is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidefast import bench


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with what is done and what there is; the bar goes away at the end."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextlib.contextmanager
def of_runs() -> Iterator[Callable[[list[bench.Progress]], None]]:
    """For sweeps: a function to call with how far each run is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("batches", total=None)

        def show(progress: list[bench.Progress]) -> None:
            finished = sum(one.finished for one in progress)
            shown.update(
                task,
                description=f"{finished} of {len(progress)} runs finished; batches",
                completed=sum(one.seen for one in progress),
                total=sum(one.total for one in progress) or None,
            )

        yield show
