"""A fleet: many independent streams over one set of frozen weights."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tidefast.adapter import Adapter
from tidefast.core.record import StepRecord
from tidefast.core.resumption import Resumption
from tidefast.core.session import Session
from tidefast.core.specification import Given
from tidefast.core.validation import require_choice, require_count
from tidefast.errors import LostStreamError, SnapshotError, StreamsError, UnreadableStreamError
from tidefast.fleet import snapshots
from tidefast.fleet.entry import StreamEntry, Taken
from tidefast.fleet.gate import Gate
from tidefast.fleet.interrupts import DeferredInterrupts
from tidefast.fleet.joint_step import JointCall, JointStepper, shares_passes
from tidefast.fleet.manifest import appearing, checked_name, file_name, read_manifest
from tidefast.fleet.member import Member
from tidefast.fleet.scribe import Scribe
from tidefast.fleet.workers import Workers
from tidefast.methods.base import Method
from tidefast.resets.base import Reset

_PATIENCE = 10.0  # seconds until a disk that failed is tried again
_log = logging.getLogger("tidefast")


class Fleet:
    """Many streams, each adapting on its own, that share the model's frozen weights.

    model, method, reset and further options: as for `Adapter`.
    folder: where idle streams go, below it in a folder that ends with the fleet; left out, the system's temporary one.
    resident: at most so many streams stay in memory, the least recently used go to disk and come back bit for bit.
    workers: at most so many streams take a step at the same time; each needs its own copy of the adapted parameters.
    callback: called with (name, record) after every adapting call, in the thread of the call; it may use the fleet.

    `fleet["name"]` is the adapter of that stream, which begins with its first images, or with `begin`. Until then it
    answers as the source (`predict`, `step`, `model`), and to freeze, reset, drop or label it is a KeyError.
    Any number of threads may use a fleet: calls of one stream take turns, those of different streams run side by side.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
    >>> fleet = Fleet(net, "eta", reset="asr")
    >>> fleet["camera-17"](torch.rand(16, 3, 8, 8)).shape
    torch.Size([16, 10])
    >>> list(fleet), fleet["camera-17"].step, fleet["camera-18"].step
    (['camera-17'], 1, 0)
    """

    def __init__(
        self,
        model: nn.Module,
        method: Given | Method = "roid",
        *,
        reset: Given | Reset | None = None,
        folder: str | os.PathLike[str] | None = None,
        resident: int = 1024,
        workers: int | None = None,
        callback: Callable[[str, StepRecord], None] | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        require_count("resident", resident)
        self.workers = workers if workers is not None else max(1, min(8, os.cpu_count() or 1))
        require_count("workers", self.workers)
        if "callbacks" in options:
            raise TypeError("a fleet has one callback, called with (name, record): pass callback=")
        self.resident, self.seed, self._callback = resident, seed or 0, callback
        first = Adapter(model, method, reset=reset, seed=seed, **options)
        self.method, self.policy, self.window = first.method, first.policy, first.window
        self.measures = first.measures
        again: dict[str, Any] = {**options, "objective": None, "reset": first.policy, "seed": seed}
        if options.get("source") is not None:
            again["source"] = first.preparation  # computed once, shared by all
        self._pool = Workers(functools.partial(Adapter, model, first.method, **again), self.workers)
        self._steppers = Workers(functools.partial(JointStepper, self._pool.make), self.workers)
        self.shares_passes = shares_passes(first)
        """Whether streams of one call are stepped together, rather than one after the other."""
        self._scribe = Scribe(first)
        self._entries: dict[str, StreamEntry] = {}
        self._order: OrderedDict[str, None] = OrderedDict()  # streams in memory, the least recently used first
        self._lock = threading.Lock()
        self._gate = Gate()
        self.changes = 0
        """How often anything changed; a snapshot is due when it has."""
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="tidefast-", dir=folder))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._shelf = self._new_shelf()
        self._disk_failed = -_PATIENCE
        self._settings: Resumption = "same"  # of what the streams were restored with, for those that are rolled back

    # -- streams ----------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Member:
        """The stream's adapter; asking for it does not begin the stream."""
        return Member(self, checked_name(name))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        """Names of the streams that have begun, in alphabetical order."""
        with self._lock:
            return iter(sorted(self._entries))

    def begin(self, name: str) -> None:
        """Begin a stream before its first images; one that has begun stays as it is."""
        with self._gate.passing(), self._lock:
            if checked_name(name) not in self._entries:
                self._entries[name] = StreamEntry(name)
                self.changes += 1

    def drop(self, name: str) -> None:
        """Forget a stream, after the step it may be taking; snapshots that were taken keep it."""
        with self._gate.passing():
            entry, created = self._claim(name, begin=False)
            try:
                if created:
                    raise _unknown(name)
                if entry.file is not None:  # now, while nobody can begin the stream anew and write the same file
                    entry.file.unlink(missing_ok=True)
                with self._lock:
                    del self._entries[name]
                    self._order.pop(name, None)
                    self.changes += 1
            finally:
                entry.lock.release()

    def freeze(self, name: str, frozen: bool = True) -> None:
        """From now on the stream answers without adapting (or adapts again); a step under way is finished first.

        A KeyError where the stream has not begun: `begin` it, to have it frozen from its first images on.
        """
        with self._gate.passing():
            entry, created = self._claim(checked_name(name), begin=False)
            try:
                if created:
                    raise _unknown(name)
                if entry.frozen != frozen:
                    entry.frozen = frozen
                    self._mark(entry)
            finally:
                entry.lock.release()

    def is_frozen(self, name: str) -> bool:
        """Whether the stream answers without adapting."""
        entry = self._entries.get(name)
        return entry is not None and entry.frozen

    def status(self, name: str) -> dict[str, Any]:
        """What is known of a stream, without waiting for a step that it may be taking."""
        entry = self._entries.get(name)
        if entry is None:
            raise _unknown(name)
        step, last = entry.seen
        if entry.session is not None or entry.lock.locked():
            where = "memory"
        else:
            where = "new" if entry.file is None else "disk"
        record = None if last is None else last.as_dict()
        return {"name": name, "step": step, "frozen": entry.frozen, "where": where, "last": record}

    def wake(self, name: str) -> None:
        """Bring a stream into memory; a LostStreamError when its file is damaged or gone."""
        with self._lent(checked_name(name), begin=False):
            pass

    def numbers_held(self) -> int:
        """How many numbers live in memory for the streams, beyond the workers' and the shared weights."""
        with self._lock:
            sessions = [entry.session for entry in self._entries.values()]
        return sum(session.numbers() for session in sessions if session is not None)

    def take(self, name: str, images: Tensor, *, adapt: bool = True) -> Taken:
        """Predict, then adapt; without `adapt`, or when the stream is frozen, only predict.

        Predicting begins no stream, and a stream whose very first images are refused has not begun.
        """
        record: StepRecord | None = None
        try:
            with (
                DeferredInterrupts() as interrupts,
                self._lent(checked_name(name), begin=adapt) as (entry, adapter),
            ):
                before, frozen = adapter.step, entry.frozen
                if frozen or not adapt:
                    with interrupts.allowed():
                        return Taken(adapter.predict(images), before, None, frozen)
                try:
                    with interrupts.allowed():
                        logits = adapter(images)
                finally:
                    if adapter.step != before:  # also where it raises: one unusable batch too many is a step
                        record = adapter.last
                        self._mark(entry)
                return Taken(logits, adapter.step, record, False)
        finally:
            if record is not None and self._callback is not None:
                self._callback(name, record)

    def adapt(self, batches: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Predict, then adapt, for several streams at once: by name, the logits of their images.

        Shared layers see the images of all streams in one pass, normalisation layers those of each stream with its own
        statistics, scale and shift. What comes of it is what `fleet[name](images)` gives, but for rounding: 1e-5 of the
        largest logit or so in float32. Where method, policy or network do not allow it, streams take their steps one
        after the other. A stream that fails leaves the others alone: a StreamsError has their answers.

        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
        >>> fleet = Fleet(net, "tent")
        >>> answers = fleet.adapt({"north": torch.rand(4, 3, 8, 8), "south": torch.rand(6, 3, 8, 8)})
        >>> {name: tuple(logits.shape) for name, logits in answers.items()}, fleet["south"].step
        ({'north': (4, 10), 'south': (6, 10)}, 1)
        """
        results = self.take_together(batches)
        errors = {name: result for name, result in results.items() if isinstance(result, Exception)}
        answers = {name: result.logits for name, result in results.items() if isinstance(result, Taken)}
        if errors:
            raise StreamsError(errors, answers)
        return answers

    def take_together(self, batches: Mapping[str, Tensor], *, adapt: bool = True) -> dict[str, Taken | Exception]:
        """As `take`, for several streams at once, by name; in the place of what could not be done, why not."""
        for name in batches:
            checked_name(name)
        if len(batches) < 2 or not self.shares_passes:
            return {name: self._taken_or_why_not(name, images, adapt) for name, images in batches.items()}
        records: dict[str, StepRecord] = {}
        results: dict[str, Taken | Exception] = {}
        with DeferredInterrupts() as interrupts, self._gate.passing():
            with self._claimed(sorted(batches), begin=adapt) as entries, self._steppers.lent() as stepper:
                with interrupts.allowed():
                    calls, results = self._calls(entries, batches, stepper.adapter, adapt)
                    answers = stepper.take(list(calls.values()))
                for name, (logits, session, record) in zip(calls, answers, strict=True):
                    if isinstance(logits, Exception):
                        results[name] = logits
                    else:
                        results[name] = Taken(logits, session.step, record, entries[name].frozen)
                    if record is not None:
                        records[name] = record
                        self._mark(entries[name])
                    self._keep(entries[name], session)
                if stepper.inseparable and self.shares_passes:
                    self.shares_passes = False
                    _log.warning("streams take their steps one by one: %s", stepper.inseparable)
            self._make_room()
        if self._callback is not None:
            with contextlib.ExitStack() as callbacks:  # all are called, whatever one of them raises
                for name in reversed(records):
                    callbacks.callback(self._callback, name, records[name])
        return {name: results[name] for name in batches}

    def _taken_or_why_not(self, name: str, images: Tensor, adapt: bool) -> Taken | Exception:
        try:
            return self.take(name, images, adapt=adapt)
        except Exception as error:
            return error

    def _calls(
        self, entries: Mapping[str, StreamEntry], batches: Mapping[str, Tensor], adapter: Adapter, adapt: bool
    ) -> tuple[dict[str, JointCall], dict[str, Taken | Exception]]:
        """What the streams are to do, and what is wrong with those that cannot be read."""
        calls: dict[str, JointCall] = {}
        failed: dict[str, Taken | Exception] = {}
        for name, entry in entries.items():
            try:
                session = entry.session
                if session is None:
                    self._bring(entry, adapter)
                    session = adapter.leave()
                calls[name] = JointCall(session, batches[name], adapt and not entry.frozen)
            except (LostStreamError, UnreadableStreamError) as error:
                failed[name] = error
        return calls, failed

    @contextlib.contextmanager
    def _claimed(self, names: Sequence[str], *, begin: bool) -> Iterator[dict[str, StreamEntry]]:
        """The entries of some streams, with their locks held; names are in order, so that no two wait for each other.

        A stream that is new, and has taken no step at the end, has not begun.
        """
        entries: dict[str, StreamEntry] = {}
        new: list[str] = []
        try:
            for name in names:
                entries[name], created = self._claim(name, begin=begin)
                if created:
                    new.append(name)
            yield entries
        finally:
            with self._lock:
                for name in new:
                    if entries[name].seen[0] == 0:
                        self._entries.pop(name, None)
                        self._order.pop(name, None)
            for entry in entries.values():
                entry.lock.release()

    def _keep(self, entry: StreamEntry, session: Session) -> None:
        """The stream is `session` from now on, and in memory."""
        entry.seen, entry.session = (session.step, session.last), session
        with self._lock:
            if self._entries.get(entry.name) is entry:  # one that only predicts has not begun
                self._order[entry.name] = None
                self._order.move_to_end(entry.name)

    def answer_as_new(self, images: Tensor) -> Tensor:
        """What a stream that has seen nothing would answer: logits [batch, classes]; none begins."""
        with self._gate.passing(), self._pool.lent() as adapter:
            adapter.reset()
            adapter.seed = self.seed
            return adapter.predict(images)

    # -- lending ----------------------------------------------------------------------------------------------

    def _mark(self, entry: StreamEntry) -> None:
        entry.changed += 1
        with self._lock:
            self.changes += 1

    def _claim(self, name: str, *, begin: bool) -> tuple[StreamEntry, bool]:
        """The entry of a stream with its lock held, and whether it is a new one; with `begin` a new one is kept."""
        while True:
            with self._lock:
                entry = self._entries.get(name)
                if entry is None:
                    entry = StreamEntry(name)
                    entry.lock.acquire()
                    if begin:
                        self._entries[name] = entry
                    return entry, True
            entry.lock.acquire()
            if self._entries.get(name) is entry:
                return entry, False
            entry.lock.release()  # it was dropped while we waited: look again

    @contextlib.contextmanager
    def _lent(
        self, name: str, *, begin: bool, known: bool = False, blank: bool = False
    ) -> Iterator[tuple[StreamEntry, Adapter]]:
        """An adapter with the stream in it, for one caller at a time; with `begin` a new stream is kept.

        With `known` a stream that has not begun, or was dropped by the time it would be lent, is a KeyError.
        With `blank` the adapter is as new, and what is in it at the end takes the place of the stream's state, which
        need not be readable; after an exception the stream is as before.
        """
        with self._gate.passing():
            entry, created = self._claim(name, begin=begin)
            try:
                if known and created:
                    raise _unknown(name)
                with self._pool.lent() as adapter:
                    if not blank:
                        self._bring(entry, adapter)
                    else:
                        adapter.seed = self.seed
                    kept = not blank
                    try:
                        yield entry, adapter
                        kept = True
                    finally:
                        session = adapter.leave()
                        if kept and (begin or not created):
                            self._keep(entry, session)
            except BaseException:
                if begin and created and entry.seen[0] == 0:
                    with self._lock:
                        self._entries.pop(name, None)
                        self._order.pop(name, None)
                raise
            finally:
                entry.lock.release()
            self._make_room()

    def _bring(self, entry: StreamEntry, adapter: Adapter) -> None:
        """Put the stream into the adapter, from memory, from disk, or as new."""
        if entry.session is not None:
            adapter.enter(entry.session)
        elif entry.file is not None:
            try:
                adapter.reopen(entry.file)
            except (SnapshotError, FileNotFoundError) as error:
                raise LostStreamError(f"stream {entry.name!r}: {error}", (entry.name,)) from error
            except (OSError, MemoryError) as error:
                raise UnreadableStreamError(f"stream {entry.name!r} cannot be read now: {error}") from error
            adapter.last = entry.seen[1]
        else:
            adapter.reset()
            adapter.seed = self.seed

    def _make_room(self) -> None:
        """Move the least recently used streams to disk until no more than `resident` are in memory."""
        while True:
            with self._lock:
                if len(self._order) <= self.resident or time.monotonic() < self._disk_failed + _PATIENCE:
                    return
                for name in self._order:
                    entry = self._entries[name]
                    if entry.lock.acquire(blocking=False):
                        break
                else:
                    return  # all of them are busy: the next call tries again
            try:
                self._store(entry)
            except (OSError, MemoryError) as error:
                self._disk_failed = time.monotonic()
                _log.warning("idle streams stay in memory, the first cannot be written: %s", error)
            finally:
                entry.lock.release()

    def _store(self, entry: StreamEntry) -> None:
        """Move one stream, whose lock is held, to disk; on an OSError it is in memory as before."""
        if entry.session is not None and entry.stored != entry.changed:
            path = self._shelf / file_name(entry.name)
            for folder in (self._folder, self._shelf):  # somebody may have removed them
                folder.mkdir(exist_ok=True)
            self._scribe.write(entry.session, path)
            entry.file, entry.stored = path, entry.changed
        entry.session = None
        with self._lock:
            self._order.pop(entry.name, None)

    def _new_shelf(self) -> Path:
        shelf = self._folder / secrets.token_hex(4)
        shelf.mkdir()
        return shelf

    # -- snapshots --------------------------------------------------------------------------------------------

    def snapshot(self, folder: str | os.PathLike[str]) -> int:
        """Write all streams as they are at one moment to a new folder; how many there are.

        Steps wait only while the streams are listed, and go on while they are written. The folder appears whole or not
        at all. A stream that has not changed since the last snapshot costs a link. A LostStreamError names the idle
        streams whose files are gone: there is no snapshot without them.
        """
        folder = Path(folder)
        with appearing(folder) as building:
            with self._gate.closed():
                entries = self._all()
                if lost := snapshots.gone(entries):
                    raise LostStreamError(f"the files of {len(lost)} idle streams are gone", lost)
                streams = [snapshots.listed(entry, building) for entry in entries]
            snapshots.write(streams, building, self._scribe)
        for stream in streams:
            if stream.content is not None:
                stream.entry.written = (stream.changed, folder / file_name(stream.entry.name))
        return len(streams)

    def _all(self) -> list[StreamEntry]:
        with self._lock:
            return list(self._entries.values())

    def restore(
        self,
        folder: str | os.PathLike[str],
        *older: str | os.PathLike[str],
        on_damage: Callable[[str, str], None] | None = None,
        same: Callable[[str, Path], bool] = lambda name, folder: True,
        settings: Resumption = "same",
    ) -> list[str]:
        """Go on from a snapshot: its streams take the place of all that are here. Returns their names.

        Every file is read and checked first; after an error nothing has changed. With `on_damage`, a stream whose file
        is damaged goes on from the first of the `older` snapshots that has it whole, or else begins anew; `on_damage`
        is called with its name and what was wrong, and `same` says whether what has its name in an older one is the
        same stream, and not one that was dropped since. A snapshot of another model, method or policy is always an
        error, and `settings` says what becomes of one with another learning rate or seed, as in `Adapter.load`.
        """
        require_choice("settings", settings, ("same", "saved", "own"))
        folders = [Path(folder), *map(Path, older)]
        shelf = self._new_shelf()
        try:
            entries = {
                name: snapshots.revived(
                    name,
                    about,
                    [folders[0], *(folder for folder in folders[1:] if same(name, folder))],
                    shelf,
                    self._scribe,
                    on_damage,
                    settings,
                )
                for name, about in read_manifest(folders[0]).items()
            }
        except BaseException:
            shutil.rmtree(shelf, ignore_errors=True)
            raise
        with self._gate.closed(), self._lock:
            self._entries, former, self._shelf, self._settings = entries, self._shelf, shelf, settings
            self._order.clear()
            self.changes += 1
        shutil.rmtree(former, ignore_errors=True)
        return sorted(entries)

    def rollback(self, name: str, folder: str | os.PathLike[str], *, begin: bool = True) -> None:
        """Take one stream back to what it was in a snapshot; the others, and whether it is frozen, stay as they are.

        begin: whether one that is not there any more begins again; else it is a KeyError.
        """
        about = read_manifest(Path(folder)).get(name)
        if about is None:
            raise KeyError(f"the snapshot {Path(folder).name} has no stream {name!r}")
        with self._lent(name, begin=begin, known=not begin, blank=True) as (entry, adapter):
            if about["file"] is not None:
                adapter.load(Path(folder) / about["file"], settings=self._settings)
            self._mark(entry)


def _unknown(name: str) -> KeyError:
    return KeyError(f"there is no stream {name!r}: it begins with its first images, or with Fleet.begin")
