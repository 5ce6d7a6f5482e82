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
from tidefast.core.leaving import staying
from tidefast.core.memory import keep_memory
from tidefast.core.specification import import_here
from tidefast.errors import SpecificationError, UnknownNameError

_PATIENCE = 120.0  # seconds for the process of a lost worker to leave the folder


@dataclass(frozen=True)
class Job:
    """An experiment with its folder.

    It ends after the batch at hand, with a snapshot, when the file `stop` exists or its `parent` process, if it has
    one on this machine, is gone. `batches` is a folder that it shares with the others that see the same stream.
    `modules` are imported first: they may register what the experiment names.
    """

    experiment: Experiment
    folder: Path
    stop: Path
    threads: int
    snapshot_every: int
    parent: int | None = None
    batches: Path | None = None
    modules: tuple[str, ...] = ()

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
    keep_memory()
    torch.set_num_threads(job.threads)
    absent = _import(job.modules)
    try:
        with staying("the run"):
            run(
                job.experiment,
                job.folder,
                snapshot_every=job.snapshot_every,
                should_stop=job.should_stop,
                patience=_PATIENCE,
                batches=job.batches,
            )
    except UnknownNameError as error:  # the process that started the sweep has checked all names
        elsewhere = f"; modules that cannot be imported here: {', '.join(absent)}" if absent else ""
        return _failed(
            job,
            f"{type(error).__name__}: {error}; it is registered only in the process that started the sweep: name it as "
            f"module:Class, of a module that workers can import{elsewhere}",
        )
    except Exception as error:
        return _failed(job, f"{type(error).__name__}: {error}")
    return Report(job.experiment.key)


def _import(modules: tuple[str, ...]) -> list[str]:
    """Import them, as far as they are here; which are not."""
    absent = []
    for module in modules:
        try:
            import_here(module)
        except SpecificationError:
            absent.append(module)
    return absent


def _failed(job: Job, error: str) -> Report:
    with contextlib.suppress(OSError):
        (job.folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
    return Report(job.experiment.key, error)
