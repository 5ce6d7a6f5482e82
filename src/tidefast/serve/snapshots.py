"""What a service keeps on disk: numbered snapshots of all streams, and a journal of their names."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidefast.core.files import write_atomically
from tidefast.core.resumption import Resumption
from tidefast.errors import SnapshotError, UnreadableStreamError
from tidefast.fleet import Fleet
from tidefast.fleet.manifest import MANIFEST, checked_name, read_manifest
from tidefast.serve.hold import FolderHold

_SHORT = 1000  # lines of a journal that nobody minds
_NUMBERED = re.compile(r"\d{6,12}")
_log = logging.getLogger("tidefast.serve")


class Journal:
    """The names of all streams, one event on a line, on the disk before anybody is told.

    A snapshot knows the streams of its moment; the journal knows those that began or were dropped since.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self.names: set[str] = set()
        """Streams that have begun and were not dropped."""
        self.dropped: dict[str, int] = {}
        """Streams that were dropped, and the number of the last snapshot before that."""
        content = path.read_bytes() if path.exists() else b""
        self._torn = not content.endswith(b"\n") and content != b""
        lines = content.splitlines()
        self._lines = len(lines)
        for line in lines:
            try:
                event = json.loads(line)
                self._note(checked_name(event["stream"]), event["dropped"])
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                _log.warning("the journal has a line that is none, it is left out: %r", line[:80])

    def _note(self, name: str, dropped: int | None) -> None:
        if dropped is None:
            self.names.add(name)
        else:
            self.names.discard(name)
            self.dropped[name] = int(dropped)

    def compact(self, oldest: int) -> None:
        """Leave out what no snapshot from number `oldest` on can contradict."""
        with self._lock:
            self.dropped = {name: last for name, last in self.dropped.items() if last >= oldest}
            lines = [_event(name, last) for name, last in sorted(self.dropped.items())]
            lines += [_event(name, None) for name in sorted(self.names)]
            write_atomically(self._path, b"".join(lines))
            self._torn, self._lines = False, len(lines)

    def is_long(self, oldest: int) -> bool:
        """Whether most of its lines say nothing any more, as long as snapshot `oldest` is the first that is there."""
        if self._lines <= _SHORT:
            return False
        with self._lock:
            lasting = len(self.names) + sum(last >= oldest for last in self.dropped.values())
        return self._lines > _SHORT + 2 * lasting

    def begin(self, name: str) -> None:
        """A stream has begun; an OSError when that cannot be written."""
        if name not in self.names:
            self._append(name, None)

    def drop(self, name: str, last: int) -> None:
        """A stream was dropped, when `last` was the latest snapshot."""
        self._append(name, last)

    def _append(self, name: str, dropped: int | None) -> None:
        with contextlib.ExitStack() as opened:
            with self._lock:  # opened inside: `compact` puts another file in its place
                file = opened.enter_context(open(self._path, "ab", buffering=0))
                line = b"\n" * self._torn + _event(name, dropped)
                start = file.seek(0, os.SEEK_END)
                if file.write(line) != len(line):
                    file.truncate(start)
                    raise OSError(f"there is no room for the journal {self._path.name}")
                self._torn = False
                self._lines += 1
                self._note(name, dropped)
            os.fsync(file.fileno())  # outside of the lock: many streams may begin at once


def _event(name: str, dropped: int | None) -> bytes:
    return json.dumps({"stream": name, "dropped": dropped}).encode() + b"\n"


class Snapshots:
    """The state folder of a service, which one process at a time may use.

    folder: gets `snapshots/000001`, `snapshots/000002`, ..., `journal.jsonl` and `idle/`.
    keep: so many of the latest snapshots stay.
    on_damage: called with (stream, what was wrong) for everything that turns out unreadable.
    """

    def __init__(self, folder: Path, keep: int, on_damage: Callable[[str, str], None]) -> None:
        self._hold = FolderHold(folder, patience=2.0)  # a killed predecessor may still be ending
        self.folder, self.keep, self._on_damage = folder / "snapshots", keep, on_damage
        self.folder.mkdir(exist_ok=True)
        self._clear_away()
        self.idle = folder / "idle"
        shutil.rmtree(self.idle, ignore_errors=True)
        self.journal = Journal(folder / "journal.jsonl")
        self._taking = threading.Lock()
        self._naming = threading.Lock()  # the journal and the fleet name the same streams while nobody holds it
        self._changes = -1
        self.least: Callable[[], int] = lambda: 0
        """The next snapshot has this number, or a higher one."""
        self.unreadable: list[int] = []
        """Snapshots that were passed over at the start, because the lists of their streams are damaged."""

    def close(self) -> None:
        """Let another process use the folder."""
        self._hold.close()

    def problem(self) -> str | None:
        """What is wrong with the folder; None when nothing is."""
        return self._hold.problem()

    def _ensure_folder(self) -> None:
        """Make a folder that was deleted anew; an OSError when it was moved away, or another is in its place."""
        problem = self._hold.problem()
        if problem is None:
            return
        if self._hold.folder.exists() or not self._hold.removed():
            raise OSError(errno.ESTALE, problem)
        _log.error("%s was deleted: it is made anew, and its snapshots are lost", self._hold.folder)
        self._hold.make_anew()
        self.folder.mkdir()
        self.idle.mkdir()
        self.journal.compact(0)

    def numbers(self) -> list[int]:
        """Of the snapshots, the oldest first."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(int(path.name) for path in self.folder.iterdir() if _NUMBERED.fullmatch(path.name))
        return []

    def last(self) -> int:
        """The highest number that was ever used, as far as anything remembers it."""
        return max([0, *self.numbers()[-1:], *self.journal.dropped.values()])

    def path(self, number: int) -> Path:
        """Where a snapshot lies."""
        return self.folder / f"{number:06d}"

    def listed(self) -> list[dict[str, Any]]:
        """Name, time and number of streams of each readable snapshot, the oldest first."""
        rows = []
        for number in self.numbers():
            try:
                streams = read_manifest(self.path(number))
                taken = (self.path(number) / MANIFEST).stat().st_mtime
            except (SnapshotError, OSError):
                continue
            rows.append({"name": self.path(number).name, "taken": round(taken, 3), "streams": len(streams)})
        return rows

    def restore(self, fleet: Fleet, settings: Resumption = "same") -> dict[str, int]:
        """Go on from the newest readable snapshot and the journal; the step that each stream had there."""
        numbers = self.numbers()[::-1]
        used, had = 0, {}
        for i, number in enumerate(numbers):
            try:
                manifest = read_manifest(self.path(number))
            except SnapshotError as error:
                self.unreadable.append(number)
                self._on_damage(f"snapshot {number:06d}", str(error))
                continue
            older = map(self.path, numbers[i + 1 :])
            fleet.restore(
                self.path(number),
                *older,
                on_damage=self._on_damage,
                same=lambda name, folder: self._has(name, int(folder.name)),
                settings=settings,
            )
            used, had = number, {name: int(about["step"]) for name, about in manifest.items()}
            break
        for name in [name for name in fleet if not self._has(name, used)]:
            fleet.drop(name)
        for name in self.journal.names - set(fleet):
            fleet.begin(name)
        self.journal.names |= set(fleet)
        try:
            self.journal.compact(numbers[-1] if numbers else self.last() + 1)
        except OSError as error:
            _log.warning("the journal cannot be written, it stays as it is: %s", error)
        self._changes = fleet.changes
        return had

    def _has(self, name: str, number: int) -> bool:
        """Whether a stream that is in a snapshot was not dropped since; one of its name may have begun again."""
        return number > self.journal.dropped.get(name, -1)

    def take(self, fleet: Fleet, *, always: bool = False, least: int = 0) -> tuple[int, int] | None:
        """Take a snapshot if anything has changed since the last: its number and how many streams it holds.

        always: also when nothing has changed.
        least: its number, unless there is a higher one already.
        """
        with self._taking:
            self._ensure_folder()
            changes = fleet.changes
            if changes == self._changes and not always and self.folder.is_dir():
                return None
            number = max(self.last() + 1, self.least(), least)
            streams = fleet.snapshot(self.path(number))
            self._changes = changes
            for old in self.numbers()[: -self.keep]:
                shutil.rmtree(self.path(old), ignore_errors=True)
            self._clear_away()
            oldest = self.numbers()[0]
            if self.journal.is_long(oldest):
                self.journal.compact(oldest)
            return number, streams

    def _clear_away(self) -> None:
        """What is left of snapshots that failed, or that a kill ended, where it could not be cleared away at once."""
        for left_over in self.folder.glob(".*.tmp"):
            shutil.rmtree(left_over, ignore_errors=True)

    def begin(self, fleet: Fleet, name: str) -> None:
        """Write down that a stream has begun, unless it was dropped meanwhile; an OSError when that cannot be done."""
        if name in self.journal.names:
            return
        with self._naming:
            if name in fleet:
                self._ensure_folder()
                self.journal.begin(name)

    def drop(self, fleet: Fleet, name: str) -> None:
        """Drop a stream, for good: no snapshot brings it back at a restart."""
        with self._taking:  # so that "the last snapshot before" is the truth
            if name not in fleet:
                raise KeyError(f"there is no stream {name!r}")
            with self._naming:
                self._ensure_folder()
                self.journal.drop(name, self.last())
                fleet.drop(name)

    def find(self, name: str) -> Path | None:
        """The snapshot of that name, if it is there."""
        path = self.folder / name if _NUMBERED.fullmatch(name) else None
        return path if path is not None and path.is_dir() else None

    def recover(self, fleet: Fleet, name: str) -> None:
        """Take a stream that is lost back to the newest snapshot that has it whole, or to its start.

        An UnreadableStreamError when there may be a newer one that only cannot be read now; a KeyError when it was
        dropped meanwhile.
        """
        problem = self._hold.problem()
        if problem is not None and not self._hold.removed():
            raise UnreadableStreamError(f"stream {name!r} cannot be read: {problem}")
        try:
            for number in [number for number in self.numbers()[::-1] if self._has(name, number)]:
                try:
                    fleet.rollback(name, self.path(number), begin=False)
                except (SnapshotError, KeyError, FileNotFoundError) as error:
                    _log.warning("stream %r cannot be taken from snapshot %06d: %s", name, number, error)
                    continue
                return
        except (OSError, MemoryError) as error:
            raise UnreadableStreamError(f"stream {name!r} cannot be read from the snapshots now: {error}") from error
        fleet[name].reset()
