"""One run of a sweep, as a worker process carries it out."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

from tidefast.bench.experiment import Experiment
from tidefast.bench.results import ERROR, RESULT
from tidefast.bench.runner import run

_PATIENCE = 120.0  # seconds for the process of a lost worker to leave the folder


@dataclass(frozen=True)
class Job:
    """An experiment with its folder.

    It ends after the batch at hand, with a snapshot, when the file `stop` exists or its `parent` process, if it has
    one on this machine, is gone. `batches` is a folder that it shares with the others that see the same stream.
    """

    experiment: Experiment
    folder: Path
    stop: Path
    threads: int
    snapshot_every: int
    parent: int | None = None
    batches: Path | None = None

    def is_finished(self) -> bool:
        return (self.folder / RESULT).is_file()

    def should_stop(self) -> bool:
        return self.stop.exists() or (self.parent is not None and os.getppid() != self.parent)


@dataclass(frozen=True)
class Report:
    """How a job ended."""

    key: str
    error: str | None = None


def carry_out(job: Job) -> Report:
    """Run the job in this process; what goes wrong is written into its folder and reported, not raised."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    torch.set_num_threads(job.threads)
    try:
        run(
            job.experiment,
            job.folder,
            snapshot_every=job.snapshot_every,
            should_stop=job.should_stop,
            patience=_PATIENCE,
            batches=job.batches,
        )
    except Exception as error:
        with contextlib.suppress(OSError):
            (job.folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
        return Report(job.experiment.key, f"{type(error).__name__}: {error}")
    return Report(job.experiment.key)
