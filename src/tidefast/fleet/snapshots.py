"""A fleet's streams into the folder of a snapshot, and out of it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tidefast.core import snapshot
from tidefast.core.resumption import Resumption
from tidefast.core.session import Session
from tidefast.errors import SnapshotError
from tidefast.fleet.entry import StreamEntry
from tidefast.fleet.manifest import file_name, flush, link, write_manifest
from tidefast.fleet.scribe import Scribe

_FLUSHES = 8  # files at a time


class Listed(NamedTuple):
    """A stream as it is at the moment of a snapshot."""

    entry: StreamEntry
    changed: int
    content: Session | Path | None
    """A session to write, or a file that no later step can replace; None before the first images."""
    about: dict[str, Any]
    """What the manifest says of it."""


def listed(entry: StreamEntry, building: Path) -> Listed:
    """What is to be written of a stream, with all steps at rest."""
    content = _content(entry, building)
    file = None if content is None else file_name(entry.name)
    return Listed(entry, entry.changed, content, {"file": file, "step": entry.seen[0], "frozen": entry.frozen})


def _content(entry: StreamEntry, building: Path) -> Session | Path | None:
    if entry.written is not None and entry.written[0] == entry.changed and entry.written[1].is_file():
        return entry.written[1]
    if entry.session is not None:
        return entry.session
    if entry.file is not None:
        link(entry.file, building / file_name(entry.name))
        return building / file_name(entry.name)
    return None


def gone(entries: Sequence[StreamEntry]) -> tuple[str, ...]:
    """Streams that lie on disk only, and not there either."""
    return tuple(entry.name for entry in entries if _is_gone(entry))


def _is_gone(entry: StreamEntry) -> bool:
    if entry.session is not None or entry.file is None or entry.file.exists():
        return False
    written = entry.written
    return written is None or written[0] != entry.changed or not written[1].is_file()


def write(streams: Sequence[Listed], building: Path, scribe: Scribe) -> None:
    """Fill the folder, while steps go on, and see it to the disk."""
    new: list[Path] = []
    for stream in streams:
        path = building / file_name(stream.entry.name)
        if isinstance(stream.content, Session):
            scribe.write(stream.content, path)
            new.append(path)
        elif stream.content == path:
            new.append(path)
        elif stream.content is not None:
            link(stream.content, path)  # from an earlier snapshot, where it is safe on the disk
    with ThreadPoolExecutor(_FLUSHES) as pool:  # a disk writes many files in hardly more time than one
        list(pool.map(flush, new))
    write_manifest(building, {stream.entry.name: stream.about for stream in streams})


def revived(
    name: str,
    about: dict[str, Any],
    folders: Sequence[Path],
    shelf: Path,
    scribe: Scribe,
    on_damage: Callable[[str, str], None] | None,
    settings: Resumption = "same",
) -> StreamEntry:
    """A stream from the first of the snapshots that has it whole, on the shelf; see `Fleet.restore`."""
    entry = StreamEntry(name, frozen=about["frozen"])
    if about["file"] is None:
        return entry
    for i, path in enumerate(folder / file_name(name) for folder in folders):
        if i > 0 and not path.exists():
            continue
        try:
            step, replaced = scribe.take_over(path, shelf / path.name, settings)
        except (SnapshotError, FileNotFoundError) as error:
            if on_damage is None or _is_whole(path):
                raise SnapshotError(f"stream {name!r}: {error}") from error
            on_damage(name, str(error))
            continue
        entry.file, entry.stored, entry.seen = shelf / path.name, 0, (step, None)
        if not replaced:
            link(path, entry.file)
            entry.written = 0, path
        break
    return entry


def _is_whole(path: Path) -> bool:
    """Whether a file is an undamaged snapshot of some adapter, be it another one."""
    try:
        snapshot.read(path, "adapter")
    except (SnapshotError, FileNotFoundError):
        return False
    return True
