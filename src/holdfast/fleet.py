"""A fleet: many independent streams over one set of frozen weights."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
import logging
import os
import queue
import shutil
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from holdfast.adapter import Adapter, Session
from holdfast.errors import FolderError, SnapshotError
from holdfast.files import write_atomically
from holdfast.methods.base import Method
from holdfast.record import StepRecord
from holdfast.resets.base import Reset
from holdfast.state import State
from holdfast.validation import require_count

MANIFEST = "manifest.json"
_VERSION = 1
_log = logging.getLogger("holdfast")


@dataclass
class _Entry:
    """What the fleet knows of a stream; `session` is None while it lies in `file` or has seen nothing."""

    name: str
    lock: threading.RLock = field(default_factory=threading.RLock)
    session: Session | None = None
    file: Path | None = None
    frozen: bool = False
    step: int = 0
    last: StepRecord | None = None
    changed: int = 0
    """How often it changed; a snapshot remembers how often it had."""


class Fleet:
    """Many streams, each adapting on its own, that share the model's frozen weights.

    model, method, reset and further options: as for `Adapter`.
    folder: where idle streams go; left out, a temporary one that ends with the fleet.
    resident: at most so many streams stay in memory, the least recently used go to disk and come back bit for bit.
    workers: at most so many streams take a step at the same time; each needs its own copy of the adapted parameters.
    callback: called with (name, record) after every adapting call, in the thread of the call.

    `fleet["name"]` is an Adapter for that stream, which begins with its first images. Any number of threads may use a
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
        again: dict[str, Any] = {**options, "objective": None, "reset": first.policy}
        if first.preparation.tensors:
            again["source"] = first.preparation
        self._make: Callable[[], Adapter] = functools.partial(Adapter, model, first.method, **again)
        self._idle: queue.LifoQueue[Adapter] = queue.LifoQueue()
        self._idle.put(first)
        self._made = 1
        self._entries: dict[str, _Entry] = {}
        self._order: OrderedDict[str, None] = OrderedDict()  # streams in memory, the least recently used first
        self._guard = threading.Lock()
        self._gate = _Gate()
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-") if folder is None else folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._written: dict[str, tuple[int, Path]] = {}  # by stream: at how many changes, and where, it was written

    # -- streams ----------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Member:
        """The stream's adapter; asking for it does not begin the stream."""
        return Member(self, _checked(name))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        """Names of the streams that have begun, in alphabetical order."""
        with self._guard:
            return iter(sorted(self._entries))

    def drop(self, name: str) -> None:
        """Forget a stream, in memory and on disk; snapshots that were taken keep it."""
        with self._gate.passing():
            with self._guard:
                entry = self._entries.get(name)
            if entry is None:
                raise KeyError(name)
            with entry.lock, self._guard:
                self._entries.pop(name, None)
                self._order.pop(name, None)
                self._written.pop(name, None)
                if entry.file is not None:
                    entry.file.unlink(missing_ok=True)

    def freeze(self, name: str, frozen: bool = True) -> None:
        """From now on the stream answers without adapting (or adapts again)."""
        with self._lent(name, begin=True) as (entry, _):
            entry.frozen = frozen
            entry.changed += 1

    def is_frozen(self, name: str) -> bool:
        """Whether the stream answers without adapting."""
        entry = self._entries.get(name)
        return entry is not None and entry.frozen

    def status(self, name: str) -> dict[str, Any]:
        """What is known of a stream, without waiting for a step that it may be taking."""
        entry = self._entries[name]
        last = None if entry.last is None else entry.last.as_dict()
        where = "memory" if entry.session is not None else "disk" if entry.file is not None else "new"
        return {"name": name, "step": entry.step, "frozen": entry.frozen, "where": where, "last": last}

    def numbers_held(self) -> int:
        """How many numbers live in memory for the streams, beyond the workers' and the shared weights."""
        with self._guard:
            sessions = [entry.session for entry in self._entries.values()]
        return sum(session.numbers() for session in sessions if session is not None)

    # -- lending ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _lent(self, name: str, *, begin: bool) -> Iterator[tuple[_Entry, Adapter]]:
        """An adapter with the stream in it, for one caller at a time; with `begin` a new stream is kept."""
        with self._gate.passing():
            with self._guard:
                entry = self._entries.get(name) or _Entry(name)
                if begin:
                    entry = self._entries.setdefault(name, entry)
            with entry.lock, self._worker() as adapter:
                self._bring(entry, adapter)
                try:
                    yield entry, adapter
                finally:
                    entry.step, entry.last = adapter.step, adapter.last
                    session = adapter.leave()
                    if begin:
                        entry.session = session
                        with self._guard:
                            if self._entries.get(name) is entry:
                                self._order[name] = None
                                self._order.move_to_end(name)
            if begin:
                self._make_room()

    @contextlib.contextmanager
    def _worker(self) -> Iterator[Adapter]:
        with self._guard:
            grow = self._idle.empty() and self._made < self.workers
            self._made += grow
        adapter = self._make() if grow else self._idle.get()
        try:
            yield adapter
        finally:
            self._idle.put(adapter)

    def _bring(self, entry: _Entry, adapter: Adapter) -> None:
        """Put the stream into the adapter, from memory, from disk, or as new."""
        if entry.session is not None:
            adapter.enter(entry.session)
            entry.session = None
        elif entry.file is not None:
            adapter.load(entry.file)
            adapter.last = entry.last
        else:
            adapter.reset()
            adapter.seed = self.seed

    def _make_room(self) -> None:
        """Move the least recently used streams to disk until no more than `resident` are in memory."""
        while True:
            with self._guard:
                if len(self._order) <= self.resident:
                    return
                for name in self._order:
                    entry = self._entries[name]
                    if entry.lock.acquire(blocking=False):
                        break
                else:
                    return  # all of them are busy: the next call tries again
            try:
                if not self._store(entry):
                    return
            finally:
                entry.lock.release()

    def _store(self, entry: _Entry) -> bool:
        """Move one stream, whose lock is held, to disk; whether that could be done."""
        session = entry.session
        if session is None:
            return True
        path = self._folder / _file_name(entry.name)
        try:
            with self._worker() as adapter:
                adapter.enter(copy.copy(session))
                try:
                    adapter.save(path, durable=False)
                finally:
                    adapter.leave()
        except OSError as error:
            _log.warning("stream %r stays in memory, it could not be written: %s", entry.name, error)
            return False
        entry.file, entry.session = path, None
        with self._guard:
            self._order.pop(entry.name, None)
        return True

    # -- snapshots --------------------------------------------------------------------------------------------

    def snapshot(self, folder: str | os.PathLike[str]) -> int:
        """Write all streams as they are at one moment to a new folder; how many there are.

        Steps wait while the streams in memory are copied, and go on while the copies are written. The folder appears
        whole or not at all. Streams that have not changed since the last snapshot cost a link.
        """
        folder = Path(folder)
        if folder.exists():
            raise FolderError(f"{folder} is there already: a snapshot is written to a new folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        try:
            copies, manifest, written = self._collect(building)
            with self._worker() as adapter:
                for name, session in copies:
                    adapter.enter(session)
                    try:
                        adapter.save(building / _file_name(name))
                    finally:
                        adapter.leave()
            text = json.dumps({"version": _VERSION, "taken": time.time(), "streams": manifest}, sort_keys=True)
            write_atomically(building / MANIFEST, text.encode())
            building.rename(folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        with self._guard:
            for name, changed in written.items():
                self._written[name] = (changed, folder / _file_name(name))
        return len(manifest)

    def _collect(self, folder: Path) -> tuple[list[tuple[str, Session]], dict[str, Any], dict[str, int]]:
        """With all steps at rest: copies of the streams to write, links to the others, and the list of all."""
        copies: list[tuple[str, Session]] = []
        manifest: dict[str, Any] = {}
        written: dict[str, int] = {}
        with self._gate.closed():
            for name, entry in self._entries.items():
                about: dict[str, Any] = {"file": None, "step": entry.step, "frozen": entry.frozen}
                old_changed, old = self._written.get(name, (-1, None))
                if old is not None and old_changed == entry.changed and old.exists():
                    _link(old, folder / old.name)
                    about["file"] = old.name
                elif entry.session is not None:
                    copies.append((name, _copied(entry.session)))
                    about["file"] = _file_name(name)
                elif entry.file is not None:
                    _link(entry.file, folder / entry.file.name)
                    about["file"] = entry.file.name
                if about["file"] is not None:
                    written[name] = entry.changed
                manifest[name] = about
        return copies, manifest, written

    def restore(self, folder: str | os.PathLike[str]) -> list[str]:
        """Go on from a snapshot: its streams take the place of all that are here.

        Files are read when their stream is next used; one that turns out damaged raises then, and harms no other.
        Returns the names of the streams.
        """
        folder = Path(folder)
        listed = read_manifest(folder)
        entries: dict[str, _Entry] = {}
        for name, about in listed.items():
            entry = _Entry(_checked(name), frozen=about["frozen"], step=about["step"])
            if about["file"] is not None:
                source = folder / about["file"]
                if not source.is_file():
                    raise SnapshotError(f"{folder} lacks the file of stream {name!r}")
                entry.file = self._folder / _file_name(name)
            entries[name] = entry
        with self._gate.closed(), self._guard:
            for name, entry in entries.items():
                if entry.file is not None:
                    _link(folder / listed[name]["file"], entry.file)
            self._entries, self._written = entries, {}
            self._order.clear()
        return sorted(entries)

    def rollback(self, name: str, folder: str | os.PathLike[str]) -> None:
        """Take one stream back to what it was in a snapshot; the others stay as they are."""
        about = read_manifest(Path(folder)).get(name)
        if about is None:
            raise KeyError(f"the snapshot {Path(folder).name} has no stream {name!r}")
        with self._lent(name, begin=True) as (entry, adapter):
            if about["file"] is None:
                adapter.reset()
            else:
                adapter.load(Path(folder) / about["file"])
            entry.frozen = about["frozen"]
            entry.changed += 1


class Member(Adapter):
    """One stream of a fleet: an Adapter whose network is lent to it for each call."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet, self.name = fleet, name

    def __repr__(self) -> str:
        return f"<stream {self.name!r} at step {self.step}>"

    def __call__(self, images: Tensor) -> Tensor:
        """Predict, then adapt; a frozen stream only predicts."""
        fleet = self.fleet
        if fleet.is_frozen(self.name):
            return self.predict(images)
        with fleet._lent(self.name, begin=True) as (entry, adapter):
            before = adapter.step
            try:
                return adapter(images)
            finally:
                if adapter.step != before:
                    entry.changed += 1
                    if fleet._callback is not None and adapter.last is not None:
                        fleet._callback(self.name, adapter.last)

    def predict(self, images: Tensor) -> Tensor:
        with self.fleet._lent(self.name, begin=self.name in self.fleet) as (_, adapter):
            return adapter.predict(images)

    def reset(self) -> None:
        with self.fleet._lent(self.name, begin=True) as (entry, adapter):
            adapter.reset()
            entry.changed += 1

    def save(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        with self.fleet._lent(self.name, begin=self.name in self.fleet) as (_, adapter):
            adapter.save(path, durable=durable)

    def load(self, path: str | os.PathLike[str]) -> None:
        with self.fleet._lent(self.name, begin=True) as (entry, adapter):
            adapter.load(path)
            entry.changed += 1

    @property
    def model(self) -> nn.Module:
        """A copy of the network as it is now for this stream; later steps do not change it."""
        with self.fleet._lent(self.name, begin=self.name in self.fleet) as (_, adapter):
            values = adapter.network.arena.values.clone()
        own = self.fleet._make()
        own.network.arena.assign(values)
        return own.model

    @property
    def num_classes(self) -> int | None:
        with self.fleet._lent(self.name, begin=self.name in self.fleet) as (_, adapter):
            return adapter.num_classes

    @property
    def step(self) -> int:  # type: ignore[override]  # an attribute there
        """Adapting calls so far."""
        entry = self.fleet._entries.get(self.name)
        return 0 if entry is None else entry.step

    @property
    def last(self) -> StepRecord | None:  # type: ignore[override]  # an attribute there
        """StepRecord of the last adapting call."""
        entry = self.fleet._entries.get(self.name)
        return None if entry is None else entry.last


class _Gate:
    """Many may pass at a time; while it is closed nobody does."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside: dict[int, int] = {}
        self._closed = False

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._condition:
            while self._closed and me not in self._inside:
                self._condition.wait()
            self._inside[me] = self._inside.get(me, 0) + 1
        try:
            yield
        finally:
            with self._condition:
                self._inside[me] -= 1
                if not self._inside[me]:
                    del self._inside[me]
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
    """The streams that a snapshot holds, by name."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        streams = dict(content["streams"])
        if content["version"] != _VERSION:
            raise SnapshotError(f"{folder} was written by another version of holdfast")
        for about in streams.values():
            file = about["file"]
            if file is not None and (Path(file).name != file or file.startswith(".")):
                raise SnapshotError(f"{folder} names a file outside of itself: {file!r}")
            int(about["step"]), bool(about["frozen"])
    except FileNotFoundError as error:
        raise SnapshotError(f"no snapshot of a fleet at {folder}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(f"{folder} is no readable snapshot of a fleet: {error!r}") from error
    return streams


def _copied(session: Session) -> Session:
    """A copy that later steps do not reach."""
    moments = {key: value.clone() if isinstance(value, Tensor) else value for key, value in session.moments.items()}
    states: dict[str, State] = {}
    for owner, state in session.states.items():
        states[owner] = State(state.fields.values())
        states[owner].update({k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()})
    return dataclasses.replace(
        session, values=session.values.clone(), moments=moments, group=dict(session.group), states=states
    )


def _checked(name: str) -> str:
    """The name of a stream, or an error; names never become paths, so they may hold any printable character."""
    if not isinstance(name, str):
        raise TypeError(f"a stream has a name, got {name!r}")
    if not 0 < len(name) <= 200 or not name.isprintable():
        raise ValueError(f"the name of a stream has 1 to 200 printable characters, got {name[:40]!r}")
    return name


def _file_name(name: str) -> str:
    """Where a stream lies: a digest of its name, so that no name can lead anywhere else."""
    return f"{hashlib.blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}.safetensors"


def _link(old: Path, new: Path) -> None:
    """Another name for a file that is only ever replaced whole; a copy where the system has no links."""
    temporary = new.with_name(f".{new.name}.link")
    temporary.unlink(missing_ok=True)
    try:
        os.link(old, temporary)
    except OSError:
        shutil.copyfile(old, temporary)
    temporary.replace(new)
