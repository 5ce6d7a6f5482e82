"""A sweep on processes of this machine, which stay for the next run: loky."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from loky import as_completed, get_reusable_executor, wait
from loky.process_executor import TerminatedWorkerError

from tidefast.bench import interruption, work
from tidefast.bench.ledger import Ledger
from tidefast.bench.work import Job, Report

_INTERVAL = 1.0


def on_processes(jobs: list[Job], processes: int, retries: int, observe: Callable[[], None]) -> list[Report]:
    """Run the jobs, so many at a time; those that a lost process leaves behind are taken up from their snapshots."""
    reports: dict[str, Report] = {}
    futile = 0
    with _Every(_INTERVAL, observe):
        while waiting := [job for job in jobs if job.experiment.key not in reports]:
            before = _progress(jobs)
            executor = get_reusable_executor(max_workers=processes)
            futures: list[Future[Report]] = []
            try:
                with interruption.held_back():  # a process that is still starting must not be hit by Ctrl-C
                    ours = [dataclasses.replace(job, parent=os.getpid()) for job in waiting]
                    futures.extend(executor.submit(work.carry_out, job) for job in ours)
                for future in as_completed(futures):
                    report = future.result()
                    reports[report.key] = report
            except KeyboardInterrupt:
                _end_gently(futures, jobs[0].stop)
                raise
            except interruption.Termination:
                get_reusable_executor().shutdown(wait=True, kill_workers=True)
                raise
            except TerminatedWorkerError:
                futile = 0 if _progress(jobs) > before else futile + 1
                if futile > retries:
                    lost = "its process was lost again and again (killed, or out of memory?)"
                    for job in waiting:
                        reports.setdefault(job.experiment.key, Report(job.experiment.key, lost))
    return list(reports.values())


def _end_gently(futures: list[Future[Report]], stop: Path) -> None:
    """Let the runs at hand take a snapshot; another Ctrl-C ends them at once."""
    try:
        stop.touch()
        for future in futures:
            future.cancel()
        wait(futures)
    finally:
        stop.unlink(missing_ok=True)
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _progress(jobs: list[Job]) -> int:
    return sum(Ledger(job.folder).written() for job in jobs)


class _Every:
    """Within it, a function is called from a thread, every so many seconds."""

    def __init__(self, interval: float, function: Callable[[], None]) -> None:
        self._interval, self._function = interval, function
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def _loop(self) -> None:
        while not self._over.wait(self._interval):
            self._function()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()
