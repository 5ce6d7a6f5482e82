"""Files that are replaced whole or not at all, and folders that one process at a time writes to."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tidefast.errors import FolderError

LOCK = ".lock"
"""The file in a folder of results that `locked` is used on."""


def write_atomically(path: str | os.PathLike[str], data: bytes, *, durable: bool = True) -> None:
    """Write `data` so that after a crash at any moment the old file or the new one is there, whole.

    Without `durable` that holds for a crash of the process, not for one of the machine.
    """
    with written_atomically(path, durable=durable) as file:
        file.write(data)


@contextlib.contextmanager
def written_atomically(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of `path` at the end, whole; after an exception nothing has changed."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:  # such as a full disk
            raise OSError(error.errno, f"{error.strerror}, while writing", str(path)) from error
        raise
    if durable and os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def locked(path: str | os.PathLike[str], patience: float = 0.0) -> Iterator[None]:
    """Hold a lock that ends with the process, however that ends; where the system has none, hold nothing.

    Raises a FolderError when another process still holds it after `patience` seconds.
    """
    if sys.platform == "win32":
        yield
        return
    with open(path, "a") as file:
        take_lock(file.fileno(), Path(path).parent, patience)
        yield


def take_lock(handle: int, folder: Path, patience: float) -> None:
    """Lock an open file or folder, for as long as it is open; a FolderError when another process keeps it locked."""
    import fcntl

    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise FolderError(f"another process is running in {folder}") from error
            time.sleep(0.05)
