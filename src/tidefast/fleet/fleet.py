"""A fleet: many independent streams over one set of frozen weights."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import queue
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from tidefast.adapter import Adapter, Session
from tidefast.core import snapshot
from tidefast.core.files import write_atomically
from tidefast.core.record import StepRecord
from tidefast.core.state import State
from tidefast.core.validation import require_count
from tidefast.errors import FolderError, SnapshotError
from tidefast.methods.base import Method
from tidefast.resets.base import Reset

MANIFEST = "manifest.json"
_VERSION = 1
_PATIENCE = 10.0  # seconds until a disk that failed is tried again
_FLUSHES = 8  # files at a time
_log = logging.getLogger("tidefast")


@dataclass
class _Entry:
    """What the fleet knows of a stream. Whoever changes more than a flag of it holds `lock`."""

    name: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    session: Session | None = None
    """None while it is lent to a worker, while it lies in `file` only, and before the first images."""
    shared: bool = False
    """A snapshot may still be writing the session: a step needs a copy."""
    file: Path | None = None
    stored: int = -1
    """What `changed` was when `file` was written."""
    written: tuple[int, Path] | None = None
    """What `changed` was at the last snapshot, and its file there."""
    changed: int = 0
    """How often it changed."""
    frozen: bool = False
    seen: tuple[int, StepRecord | None] = (0, None)
    """Steps, and the record of the last one; one value, so that they always fit together."""


class Taken(NamedTuple):
    """What came of one batch."""

    logits: Tensor
    """[batch, classes]"""
    step: int
    """Of the stream, this call included."""
    record: StepRecord | None
    """None when it only predicted."""
    frozen: bool


class Fleet:
    """Many streams, each adapting on its own, that share the model's frozen weights.

    model, method, reset and further options: as for `Adapter`.
    folder: where idle streams go, below it in a folder that ends with the fleet; left out, the system's temporary one.
    resident: at most so many streams stay in memory, the least recently used go to disk and come back bit for bit.
    workers: at most so many streams take a step at the same time; each needs its own copy of the adapted parameters.
    callback: called with (name, record) after every adapting call, in the thread of the call; it may use the fleet.

    `fleet["name"]` is the adapter of that stream, which begins with its first images. Any number of threads may use a
    fleet: calls of one stream take turns, those of different streams run side by side.

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
        method: str | Method = "roid",
        *,
        reset: str | Reset | None = None,
        folder: str | os.PathLike[str] | None = None,
        resident: int = 1024,
        workers: int | None = None,
        callback: Callable[[str, StepRecord], None] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        require_count("resident", resident)
        self.workers = workers if workers is not None else max(1, min(8, os.cpu_count() or 1))
        require_count("workers", self.workers)
        if "callbacks" in options:
            raise TypeError("a fleet has one callback, called with (name, record): pass callback=")
        self.resident, self.seed, self._callback = resident, seed, callback
        first = Adapter(model, method, reset=reset, **options)
        self.method, self.policy, self.window = first.method, first.policy, first.window
        again: dict[str, Any] = {**options, "objective": None, "reset": first.policy}
        if options.get("source") is not None:
            again["source"] = first.preparation  # computed once, shared by all
        self._make: Callable[[], Adapter] = functools.partial(Adapter, model, first.method, **again)
        self._idle: queue.LifoQueue[Adapter] = queue.LifoQueue()
        self._made = 0
        self._scribe, self._pen = first, threading.Lock()  # reads and writes files, so that no step waits for a disk
        self._entries: dict[str, _Entry] = {}
        self._order: OrderedDict[str, None] = OrderedDict()  # streams in memory, the least recently used first
        self._guard = threading.Lock()
        self._gate = _Gate()
        self.changes = 0
        """How often anything changed; a snapshot is due when it has."""
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="tidefast-", dir=folder))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._shelf = self._new_shelf()
        self._disk_failed = -_PATIENCE

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
        with self._guard:
            return iter(sorted(self._entries))

    def begin(self, name: str) -> None:
        """Begin a stream before its first images; one that has begun stays as it is."""
        with self._gate.passing(), self._guard:
            if checked_name(name) not in self._entries:
                self._entries[name] = _Entry(name)
                self.changes += 1

    def drop(self, name: str) -> None:
        """Forget a stream, after the step it may be taking; snapshots that were taken keep it."""
        with self._gate.passing():
            entry, created = self._claim(name, begin=False)
            try:
                if created:
                    raise KeyError(f"there is no stream {name!r}")
                if entry.file is not None:  # now, while nobody can begin the stream anew and write the same file
                    entry.file.unlink(missing_ok=True)
                with self._guard:
                    del self._entries[name]
                    self._order.pop(name, None)
                    self.changes += 1
            finally:
                entry.lock.release()

    def freeze(self, name: str, frozen: bool = True) -> None:
        """From now on the stream answers without adapting (or adapts again); a step under way is finished first."""
        with self._gate.passing():
            entry, created = self._claim(checked_name(name), begin=True)
            try:
                if created or entry.frozen != frozen:
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
            raise KeyError(f"there is no stream {name!r}")
        step, last = entry.seen
        if entry.session is not None or entry.lock.locked():
            where = "memory"
        else:
            where = "new" if entry.file is None else "disk"
        record = None if last is None else last.as_dict()
        return {"name": name, "step": step, "frozen": entry.frozen, "where": where, "last": record}

    def numbers_held(self) -> int:
        """How many numbers live in memory for the streams, beyond the workers' and the shared weights."""
        with self._guard:
            sessions = [entry.session for entry in self._entries.values()]
        return sum(session.numbers() for session in sessions if session is not None)

    def take(self, name: str, images: Tensor, *, adapt: bool = True) -> Taken:
        """Predict, then adapt; without `adapt`, or when the stream is frozen, only predict.

        Predicting begins no stream, and a stream whose very first images are refused has not begun.
        """
        record: StepRecord | None = None
        try:
            with self._lent(checked_name(name), begin=adapt) as (entry, adapter):
                before, frozen = adapter.step, entry.frozen
                if frozen or not adapt:
                    return Taken(adapter.predict(images), before, None, frozen)
                self._mark(entry)  # also when it fails: how far it got, only the method knows
                try:
                    logits = adapter(images)
                finally:
                    record = adapter.last if adapter.step != before else None
                return Taken(logits, adapter.step, record, False)
        finally:
            if record is not None and self._callback is not None:
                self._callback(name, record)

    # -- lending ----------------------------------------------------------------------------------------------

    def _mark(self, entry: _Entry) -> None:
        entry.changed += 1
        with self._guard:
            self.changes += 1

    def _claim(self, name: str, *, begin: bool) -> tuple[_Entry, bool]:
        """The entry of a stream with its lock held, and whether it is a new one; with `begin` a new one is kept."""
        while True:
            with self._guard:
                entry = self._entries.get(name)
                if entry is None:
                    entry = _Entry(name)
                    entry.lock.acquire()
                    if begin:
                        self._entries[name] = entry
                    return entry, True
            entry.lock.acquire()
            if self._entries.get(name) is entry:
                return entry, False
            entry.lock.release()  # it was dropped while we waited: look again

    @contextlib.contextmanager
    def _lent(self, name: str, *, begin: bool, blank: bool = False) -> Iterator[tuple[_Entry, Adapter]]:
        """An adapter with the stream in it, for one caller at a time; with `begin` a new stream is kept.

        With `blank` the adapter is as new, and what is in it at the end takes the place of the stream's state, which
        need not be readable; after an exception the stream is as before.
        """
        with self._gate.passing():
            entry, created = self._claim(name, begin=begin)
            try:
                with self._worker() as adapter:
                    if not blank:
                        self._bring(entry, adapter)
                    else:
                        adapter.seed = self.seed
                    kept = not blank
                    try:
                        yield entry, adapter
                        kept = True
                    finally:
                        seen, session = (adapter.step, adapter.last), adapter.leave()
                        if kept and (begin or not created):
                            entry.seen, entry.session, entry.shared = seen, session, False
                            with self._guard:
                                self._order[name] = None
                                self._order.move_to_end(name)
            except BaseException:
                if begin and created and entry.seen[0] == 0:
                    with self._guard:
                        self._entries.pop(name, None)
                        self._order.pop(name, None)
                raise
            finally:
                entry.lock.release()
            self._make_room()

    @contextlib.contextmanager
    def _worker(self) -> Iterator[Adapter]:
        with self._guard:
            grow = self._idle.empty() and self._made < self.workers
            self._made += grow
        try:
            adapter = self._make() if grow else self._idle.get()
        except BaseException:
            with self._guard:
                self._made -= grow
            raise
        try:
            yield adapter
        finally:
            self._idle.put(adapter)

    def _bring(self, entry: _Entry, adapter: Adapter) -> None:
        """Put the stream into the adapter, from memory, from disk, or as new."""
        if entry.session is not None:
            adapter.enter(_copied(entry.session) if entry.shared else entry.session)
            entry.session, entry.shared = None, False
        elif entry.file is not None:
            adapter.load(entry.file)
            adapter.last = entry.seen[1]
        else:
            adapter.reset()
            adapter.seed = self.seed

    def _make_room(self) -> None:
        """Move the least recently used streams to disk until no more than `resident` are in memory."""
        while True:
            with self._guard:
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
            except OSError as error:
                self._disk_failed = time.monotonic()
                _log.warning("idle streams stay in memory, the first cannot be written: %s", error)
            finally:
                entry.lock.release()

    def _store(self, entry: _Entry) -> None:
        """Move one stream, whose lock is held, to disk; on an OSError it is in memory as before."""
        if entry.session is not None and entry.stored != entry.changed:
            path = self._shelf / _file_name(entry.name)
            self._write(entry.session, path)
            entry.file, entry.stored = path, entry.changed
        entry.session, entry.shared = None, False
        with self._guard:
            self._order.pop(entry.name, None)

    def _write(self, session: Session, path: Path) -> None:
        """Write a session, which stays as it is."""
        with self._pen:
            self._scribe.enter(session)
            try:
                self._scribe.save(path, durable=False)
            finally:
                self._scribe.reset()

    def _new_shelf(self) -> Path:
        shelf = self._folder / secrets.token_hex(4)
        shelf.mkdir()
        return shelf

    # -- snapshots --------------------------------------------------------------------------------------------

    def snapshot(self, folder: str | os.PathLike[str]) -> int:
        """Write all streams as they are at one moment to a new folder; how many there are.

        Steps wait only while the streams are listed, and go on while they are written. The folder appears whole or not
        at all. A stream that has not changed since the last snapshot costs a link.
        """
        folder = Path(folder)
        if folder.exists():
            raise FolderError(f"{folder} is there already: a snapshot is written to a new folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
        building.mkdir()
        try:
            manifest: dict[str, Any] = {}
            with self._gate.closed():
                listed = [(entry, entry.changed, self._what_to_write(entry, building)) for entry in self._all()]
                for entry, _, what in listed:
                    file = None if what is None else _file_name(entry.name)
                    manifest[entry.name] = {"file": file, "step": entry.seen[0], "frozen": entry.frozen}
            new: list[Path] = []
            for entry, _, what in listed:
                path = building / _file_name(entry.name)
                if isinstance(what, Session):
                    self._write(what, path)
                    new.append(path)
                elif what == path:
                    new.append(path)
                elif what is not None:
                    _link(what, path)  # from an earlier snapshot, where it is safe on the disk
            with ThreadPoolExecutor(_FLUSHES) as pool:  # a disk writes many files in hardly more time than one
                list(pool.map(_flush, new))
            write_atomically(building / MANIFEST, _manifest_text(manifest))
            building.rename(folder)
            _flush(folder.parent)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        for entry, changed, what in listed:
            if what is not None:
                entry.written = (changed, folder / _file_name(entry.name))
        return len(manifest)

    def _all(self) -> list[_Entry]:
        with self._guard:
            return list(self._entries.values())

    def _what_to_write(self, entry: _Entry, folder: Path) -> Session | Path | None:
        """With all steps at rest: the session to write, or a file that no later step can replace."""
        if entry.written is not None and entry.written[0] == entry.changed and entry.written[1].is_file():
            return entry.written[1]
        if entry.session is not None:
            entry.shared = True
            return entry.session
        if entry.file is not None:
            _link(entry.file, folder / _file_name(entry.name))
            return folder / _file_name(entry.name)
        return None

    def restore(
        self,
        folder: str | os.PathLike[str],
        *older: str | os.PathLike[str],
        on_damage: Callable[[str, str], None] | None = None,
    ) -> list[str]:
        """Go on from a snapshot: its streams take the place of all that are here. Returns their names.

        Every file is read and checked first; after an error nothing has changed. With `on_damage`, a stream whose file
        is damaged goes on from the first of the `older` snapshots that has it whole, or else begins anew; `on_damage`
        is called with its name and what was wrong. A snapshot of another model, method or policy is always an error.
        """
        folders = [Path(folder), *map(Path, older)]
        shelf = self._new_shelf()
        try:
            entries = {
                name: self._revived(name, about, folders, shelf, on_damage)
                for name, about in read_manifest(folders[0]).items()
            }
        except BaseException:
            shutil.rmtree(shelf, ignore_errors=True)
            raise
        with self._gate.closed(), self._guard:
            self._entries, former, self._shelf = entries, self._shelf, shelf
            self._order.clear()
            self.changes += 1
        shutil.rmtree(former, ignore_errors=True)
        return sorted(entries)

    def _revived(
        self,
        name: str,
        about: dict[str, Any],
        folders: list[Path],
        shelf: Path,
        on_damage: Callable[[str, str], None] | None,
    ) -> _Entry:
        entry = _Entry(name, frozen=about["frozen"])
        if about["file"] is None:
            return entry
        for i, path in enumerate(folder / _file_name(name) for folder in folders):
            if i > 0 and not path.exists():
                continue
            try:
                step = self._step_in(path)
            except (SnapshotError, OSError) as error:
                if on_damage is None or _is_whole(path):
                    raise SnapshotError(f"stream {name!r}: {error}") from error
                on_damage(name, str(error))
                continue
            entry.file, entry.stored, entry.written = shelf / path.name, 0, (0, path)
            entry.seen = (step, None)
            _link(path, entry.file)
            break
        return entry

    def _step_in(self, path: Path) -> int:
        """How many steps the stream in a file has taken, after checking all of the file."""
        with self._pen:
            try:
                self._scribe.load(path)
                return self._scribe.step
            finally:
                self._scribe.reset()

    def rollback(self, name: str, folder: str | os.PathLike[str]) -> None:
        """Take one stream back to what it was in a snapshot; the others, and whether it is frozen, stay as they are."""
        about = read_manifest(Path(folder)).get(name)
        if about is None:
            raise KeyError(f"the snapshot {Path(folder).name} has no stream {name!r}")
        with self._lent(name, begin=True, blank=True) as (entry, adapter):
            if about["file"] is not None:
                adapter.load(Path(folder) / about["file"])
            self._mark(entry)


class Member(Adapter):
    """One stream of a fleet: an `Adapter` whose network is lent to it for each call."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet, self.name = fleet, name
        self.method, self.policy, self.window = fleet.method, fleet.policy, fleet.window

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a stream of a fleet has no {name!r} of its own: its network is lent to it for each call")

    def __repr__(self) -> str:
        return f"<stream {self.name!r} at step {self.step}>"

    def __call__(self, images: Tensor) -> Tensor:
        """Predict, then adapt; a frozen stream only predicts."""
        return self.fleet.take(self.name, images).logits

    def predict(self, images: Tensor) -> Tensor:
        """Predict only: logits [batch, classes]; nothing changes, and a stream that has not begun does not begin."""
        return self.fleet.take(self.name, images, adapt=False).logits

    def reset(self) -> None:
        """Back to the source model, bit for bit, as if nothing had been seen; a frozen stream stays frozen."""
        with self.fleet._lent(self.name, begin=True, blank=True) as (entry, _):
            self.fleet._mark(entry)

    def save(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        """As `Adapter.save`; an adapter made alike can load it."""
        with self.fleet._lent(self.name, begin=False) as (_, adapter):
            adapter.save(path, durable=durable)

    def load(self, path: str | os.PathLike[str]) -> None:
        """As `Adapter.load`."""
        with self.fleet._lent(self.name, begin=True, blank=True) as (entry, adapter):
            adapter.load(path)
            self.fleet._mark(entry)

    @property
    def model(self) -> nn.Module:
        """A copy of the network as it is now for this stream; later steps do not change it."""
        with self.fleet._lent(self.name, begin=False) as (_, adapter):
            values = adapter.network.arena.values.clone()
        own = self.fleet._make()
        own.network.arena.assign(values)
        return own.model

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None until it is given or the first batch has told."""
        with self.fleet._lent(self.name, begin=False) as (_, adapter):
            return adapter.num_classes

    def numbers_held(self) -> int:
        """How many numbers live in memory for this stream alone; none while it is on disk."""
        entry = self.fleet._entries.get(self.name)
        session = None if entry is None else entry.session
        return 0 if session is None else session.numbers()

    @property
    def step(self) -> int:  # type: ignore[override]  # an attribute there
        """Adapting calls so far; one that is under way does not count yet."""
        entry = self.fleet._entries.get(self.name)
        return 0 if entry is None else entry.seen[0]

    @property
    def last(self) -> StepRecord | None:  # type: ignore[override]  # an attribute there
        """StepRecord of the last adapting call."""
        entry = self.fleet._entries.get(self.name)
        return None if entry is None else entry.seen[1]


class _Gate:
    """Many may pass at a time; while it is closed nobody does."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Not to be nested in one thread: a gate that is closing would wait for itself."""
        with self._condition:
            while self._closed:
                self._condition.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                if not self._inside:
                    self._condition.notify_all()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Wait until nobody is inside, and keep everybody out."""
        with self._condition:
            while self._closed:
                self._condition.wait()
            self._closed = True
            while self._inside:
                self._condition.wait()
        try:
            yield
        finally:
            with self._condition:
                self._closed = False
                self._condition.notify_all()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The streams that a snapshot holds, by name; whatever is wrong with the list is a SnapshotError."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        if content["version"] != _VERSION:
            raise SnapshotError(f"{folder} was written by another version of tidefast")
        streams: dict[str, Any] = content["streams"]
        if content["digest"] != _digest(streams):
            raise SnapshotError(f"{folder} is damaged: the list of its streams does not match its digest")
        for name, about in streams.items():
            fits = type(about["frozen"]) is bool and about["file"] in (None, _file_name(checked_name(name)))
            if not fits:
                raise SnapshotError(f"{folder} is no readable snapshot of a fleet: it says {about!r} of {name[:40]!r}")
    except FileNotFoundError as error:
        raise SnapshotError(f"no snapshot of a fleet at {folder}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, SnapshotError):
            raise
        raise SnapshotError(f"{folder} is no readable snapshot of a fleet: {error!r}") from error
    return streams


def _manifest_text(streams: dict[str, Any]) -> bytes:
    content = {"version": _VERSION, "taken": time.time(), "streams": streams, "digest": _digest(streams)}
    return json.dumps(content, sort_keys=True).encode()


def _digest(streams: Any) -> str:
    return hashlib.blake2b(json.dumps(streams, sort_keys=True).encode(), digest_size=16).hexdigest()


def _is_whole(path: Path) -> bool:
    """Whether a file is an undamaged snapshot of some adapter, be it another one."""
    try:
        snapshot.read(path, "adapter")
    except (SnapshotError, OSError):
        return False
    return True


def _copied(session: Session) -> Session:
    """A copy that later steps do not reach."""
    moments = {key: value.clone() if isinstance(value, Tensor) else value for key, value in session.moments.items()}
    states: dict[str, State] = {}
    for owner, state in session.states.items():
        states[owner] = State(state.fields.values())
        states[owner].update({k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()})
    return dataclasses.replace(session, moments=moments, group=dict(session.group), states=states)


def checked_name(name: str) -> str:
    """The name of a stream, or an error; names never become paths, so they may hold any printable character."""
    if not isinstance(name, str):
        raise TypeError(f"a stream has a name, got {name!r}")
    if not 0 < len(name) <= 200 or not name.isprintable():
        raise ValueError(f"the name of a stream has 1 to 200 printable characters, got {name[:40]!r}")
    return name


def _file_name(name: str) -> str:
    """Where a stream lies: a digest of its name, so that no name can lead anywhere else."""
    return f"{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}.safetensors"


def _link(old: Path, new: Path) -> None:
    """Another name for a file that is only ever replaced whole; a copy where the system has no links."""
    try:
        os.link(old, new)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(old, new)
        _flush(new)


def _flush(path: Path) -> None:
    """Make sure that a file, or the list of files of a folder, is on the disk."""
    if os.name != "posix" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
