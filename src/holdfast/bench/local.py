"""A sweep on processes of this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable

import joblib
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from holdfast.bench.ledger import Ledger
from holdfast.bench.work import Job, Report
from holdfast.bench.work import carry_out as carry_out_one

_INTERVAL = 1.0


def carry_out(jobs: list[Job], processes: int, retries: int, observe: Callable[[], None]) -> list[Report]:
    """Run the jobs, so many at a time; those that a lost process leaves behind are taken up from their snapshots."""
    reports: dict[str, Report] = {}
    futile = 0
    with _Every(_INTERVAL, observe):
        while waiting := [job for job in jobs if job.experiment.key not in reports]:
            before = _progress(jobs)
            try:
                parallel = joblib.Parallel(
                    n_jobs=processes,
                    backend="loky",
                    batch_size=1,
                    pre_dispatch=processes,
                    return_as="generator_unordered",
                )
                for report in parallel(joblib.delayed(carry_out_one)(job) for job in waiting):
                    reports[report.key] = report
            except TerminatedWorkerError:
                futile = 0 if _progress(jobs) > before else futile + 1
                if futile > retries:
                    lost = "its process was lost again and again (killed, or out of memory?)"
                    reports.update(
                        {
                            j.experiment.key: Report(j.experiment.key, lost)
                            for j in waiting
                            if j.experiment.key not in reports
                        }
                    )
            except BaseException:
                get_reusable_executor().shutdown(wait=True, kill_workers=True)
                raise
    return list(reports.values())


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
