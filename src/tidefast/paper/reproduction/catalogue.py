"""The list of what can be reproduced: what each needs, how much of it is there, how long the rest takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tidefast.paper import launch
from tidefast.paper.reproduction import needs
from tidefast.paper.reproduction.estimate import Clock, spoken
from tidefast.paper.reproduction.targets import Target
from tidefast.report.sheet import Cell, Row, Sheet, number

BUNDLED = "bundled"


def catalogue(targets: Sequence[Target], folder: Path, jobs: int | None = None) -> Sheet:
    """A row for each, and one for all: runs that several share are counted once there."""
    clock = Clock(folder)
    jobs = jobs or os.cpu_count() or 1
    rows = []
    every = {one.key: one for target in targets for one in target.experiments}
    for target in targets:
        todo = launch.missing(target.experiments, folder)
        spent = clock.seconds(todo, min(jobs, max(1, len(todo))))
        total = len({one.key for one in target.experiments})
        rows.append(_row(target.label, _data(target), total, total - len(todo), spent, target.title))
    todo = launch.missing(every.values(), folder)
    spent = clock.seconds(todo, jobs)
    rows.append(_row("all", "", len(every), len(every) - len(todo), spent, "runs that several need counted once"))
    notes = (
        f"Time for the runs that are left, {jobs} at a time, judged by finished runs of the same kind or by a few "
        "steps measured just now; other load on the machine comes on top.",
    )
    columns = ("data", "runs", "finished", "time left", "what")
    return Sheet("reproducible", "What can be reproduced", "", columns, tuple(rows), notes)


def _row(label: str, data: str, runs: int, finished: int, spent: float | None, title: str) -> Row:
    time = spoken(spent) if runs > finished else "-"
    texts = [Cell(text, text) for text in (data or "-", time, title)]
    return Row(label, (texts[0], number(runs, 0), number(finished, 0), *texts[1:]))


def _data(target: Target) -> str:
    if not target.experiments:
        return ""
    return ", ".join(needs.needed(target.experiments)) or BUNDLED
