"""One contestant in a process of its own: adapt, write down, save a snapshot now and then."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from holdfast.adapter import Adapter
from holdfast.errors import SnapshotError
from holdfast.files import locked
from holdfast.showcase import journal
from holdfast.showcase.contestants import NUM_CLASSES, Contestant
from holdfast.showcase.folder import ERROR, SNAPSHOT, STEPS
from holdfast.showcase.settings import Batch, Settings


@dataclass(frozen=True)
class Progress:
    """How far a contestant is."""

    key: str
    step: int
    correct: int
    seen: int
    resets: int
    seconds: float = 0.0
    """Of this step, the making of its batch included; 0 for what was done before this process started."""


@dataclass(frozen=True)
class Failure:
    """A contestant ended with an error."""

    key: str
    reason: str


def main(settings: Settings, contestant: Contestant, place: Path, snapshot_every: int, parent: Connection) -> None:
    """Entry point of the process. Ends early, with a snapshot, when the parent says so or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides and tells
    torch.set_num_threads(1)
    try:
        with locked(place / ".lock", patience=600.0):  # a worker whose parent was killed may be at its last step
            compete(settings, contestant, place, snapshot_every, parent.send, parent.poll)
    except (BrokenPipeError, EOFError, ConnectionResetError):
        pass  # the parent is gone: what is on disk stands
    except Exception as error:
        (place / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
        with contextlib.suppress(OSError):
            parent.send(Failure(contestant.key, f"{type(error).__name__}: {error} (details: {place / ERROR})"))
        raise SystemExit(1) from error


def compete(
    settings: Settings,
    contestant: Contestant,
    place: Path,
    snapshot_every: int,
    report: Callable[[Progress], None],
    must_stop: Callable[[], bool],
) -> None:
    """Go through the stream from the last snapshot on, or from its beginning."""
    adapter = contestant.adapter(settings.load_model(), settings.seed)
    _resume(adapter, place)
    stream = settings.make_stream()
    if len(stream) < settings.steps:
        raise ValueError(f"the stream has {len(stream)} batches, expected {settings.steps}")
    lines = journal.read(place / STEPS)[: adapter.step]
    correct, seen = sum(line.correct for line in lines), sum(line.count for line in lines)
    resets = sum(line.reset_fraction > 0 for line in lines)
    report(Progress(contestant.key, adapter.step, correct, seen, resets))
    with journal.Journal(place / STEPS, keep=adapter.step) as book:
        try:
            for index in range(adapter.step, settings.steps):
                started = time.perf_counter()
                line = _step(adapter, stream[index])
                book.append(line)
                correct, seen = correct + line.correct, seen + line.count
                resets += line.reset_fraction > 0
                if line.step % snapshot_every == 0:
                    _save(adapter, book, place)
                took = time.perf_counter() - started
                report(Progress(contestant.key, line.step, correct, seen, resets, took))
                if must_stop():
                    break
        finally:
            _save(adapter, book, place)


def _save(adapter: Adapter, book: journal.Journal, place: Path) -> None:
    """The lines first: a snapshot is never ahead of the journal."""
    book.sync()
    adapter.save(place / SNAPSHOT)


def _resume(adapter: Adapter, place: Path) -> None:
    """Load the snapshot if there is one that the journal reaches; otherwise stay at the beginning."""
    path = place / SNAPSHOT
    if not path.is_file():
        return
    try:
        adapter.load(path)
    except SnapshotError as error:
        raise SnapshotError(f"{error}; start afresh with --fresh") from error
    if len(journal.read(place / STEPS)) < adapter.step:
        adapter.reset()


def _step(adapter: Adapter, batch: Batch) -> journal.Line:
    started = time.perf_counter()
    predicted = adapter(batch.images).argmax(1)
    seconds = time.perf_counter() - started
    record = adapter.last
    assert record is not None
    return journal.Line(
        step=record.step,
        domain=str(batch.domain),
        count=len(predicted),
        correct=int((predicted == batch.labels).sum()),
        predicted=torch.bincount(predicted, minlength=NUM_CLASSES).tolist(),
        labels=torch.bincount(batch.labels, minlength=NUM_CLASSES).tolist(),
        loss=record.loss,
        selected=record.selected,
        concentration=record.concentration,
        threshold=record.threshold,
        inconsistency=record.inconsistency,
        penalty=record.penalty,
        reset_fraction=record.reset_fraction,
        seconds=round(seconds, 6),
    )
