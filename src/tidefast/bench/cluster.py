"""A sweep on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable

from tidefast.bench import work
from tidefast.bench.work import Job, Report
from tidefast.errors import how_to_install

_INTERVAL = 1.0
_GRACE = 60.0  # seconds for the runs at hand to take a snapshot


def on_ray(
    jobs: list[Job], processes: int, retries: int, observe: Callable[[], None], address: str | None = None
) -> list[Report]:
    """Run the jobs as Ray tasks, each on as many CPUs as it has threads; Ray retries those whose node is lost."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError(f"the ray backend needs Ray: {how_to_install('ray')}") from error
    began = not ray.is_initialized()
    if began:
        cpus = None if address else processes * jobs[0].threads
        ray.init(address=address or "local", num_cpus=cpus, log_to_driver=False, include_dashboard=False)
    try:
        task = ray.remote(num_cpus=jobs[0].threads, max_retries=retries)(work.carry_out)
        keys = {task.remote(job): job.experiment.key for job in jobs}
        waiting, reports = list(keys), []
        while waiting:
            done, waiting = ray.wait(waiting, timeout=_INTERVAL)
            for reference in done:
                try:
                    reports.append(ray.get(reference))
                except ray.exceptions.RayError as error:
                    reports.append(Report(keys[reference], f"{type(error).__name__}: {error}"))
            observe()
        return reports
    except KeyboardInterrupt:
        stop = jobs[0].stop
        stop.touch()
        ray.wait(waiting, num_returns=len(waiting), timeout=_GRACE)
        stop.unlink(missing_ok=True)
        raise
    finally:
        if began:
            ray.shutdown()
