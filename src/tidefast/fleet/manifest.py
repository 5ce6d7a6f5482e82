"""The folder of a snapshot: the list of its streams, the names of their files, and how it gets to the disk whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidefast.core.files import write_atomically
from tidefast.errors import FolderError, SnapshotError

MANIFEST = "manifest.json"
_VERSION = 1


def read_manifest(folder: Path) -> dict[str, Any]:
    """The streams that a snapshot holds, by name; whatever is wrong with the list is a SnapshotError.

    An OSError says that it cannot be read now, and nothing about what is in it.
    """
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        if content["version"] != _VERSION:
            raise SnapshotError(f"{folder} was written by another version of tidefast")
        streams: dict[str, Any] = content["streams"]
        if content["digest"] != digest(streams):
            raise SnapshotError(f"{folder} is damaged: the list of its streams does not match its digest")
        for name, about in streams.items():
            fits = type(about["frozen"]) is bool and about["file"] in (None, file_name(checked_name(name)))
            if not fits:
                raise SnapshotError(f"{folder} is no readable snapshot of a fleet: it says {about!r} of {name[:40]!r}")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise SnapshotError(f"no snapshot of a fleet at {folder}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, SnapshotError):
            raise
        raise SnapshotError(f"{folder} is no readable snapshot of a fleet: {error!r}") from error
    return streams


def write_manifest(folder: Path, streams: dict[str, Any]) -> None:
    """List the streams of a snapshot, as `read_manifest` reads it."""
    content = {"version": _VERSION, "taken": time.time(), "streams": streams, "digest": digest(streams)}
    write_atomically(folder / MANIFEST, json.dumps(content, sort_keys=True).encode())


def digest(streams: Any) -> str:
    """Of the list of streams: a damaged manifest does not match it."""
    return hashlib.blake2b(json.dumps(streams, sort_keys=True).encode(), digest_size=16).hexdigest()


def checked_name(name: str) -> str:
    """The name of a stream, or an error; names never become paths, so they may hold any printable character."""
    if not isinstance(name, str):
        raise TypeError(f"a stream has a name, got {name!r}")
    if not 0 < len(name) <= 200 or not name.isprintable():
        raise ValueError(f"the name of a stream has 1 to 200 printable characters, got {name[:40]!r}")
    return name


def file_name(name: str) -> str:
    """Where a stream lies: a digest of its name, so that no name can lead anywhere else."""
    return f"{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}.safetensors"


@contextlib.contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which takes its place at the end, whole; after an exception there is none."""
    if folder.exists():
        raise FolderError(f"{folder} is there already: a snapshot is written to a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    building.mkdir()
    try:
        yield building
        building.rename(folder)
        flush(folder.parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def link(old: Path, new: Path) -> None:
    """Another name for a file that is only ever replaced whole; a copy where the system has no links."""
    try:
        os.link(old, new)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(old, new)
        flush(new)


def flush(path: Path) -> None:
    """Make sure that a file, or the list of files of a folder, is on the disk."""
    if os.name != "posix" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
