"""The hold of one process on a folder, by more than the name of a file in it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from tidefast.core.files import LOCK, locked, take_lock


class FolderHold:
    """Keeps other processes out of a folder until `close`; notices when the folder is removed or replaced.

    The lock is on the folder itself, so that removing the file `.lock` lets nobody in. That file is locked too: some
    network file systems cannot lock a folder.
    """

    def __init__(self, folder: Path, patience: float = 0.0) -> None:
        self.folder = folder
        self._held = contextlib.ExitStack()
        self._handle = -1
        self._take(patience)

    def _take(self, patience: float) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as taking:
            taking.enter_context(locked(self.folder / LOCK, patience))
            if sys.platform != "win32":
                self._handle = os.open(self.folder, os.O_RDONLY)
                taking.callback(os.close, self._handle)
                _lock(self._handle, self.folder, patience)
            self._held = taking.pop_all()

    def close(self) -> None:
        """Let another process use the folder."""
        self._held.close()
        self._handle = -1

    def problem(self) -> str | None:
        """What is wrong with the folder, in a few words; None as long as its path leads to what is held."""
        if self._handle < 0:
            return None
        held = os.fstat(self._handle)
        try:
            there = self.folder.stat()
        except OSError as error:
            return (
                "the state folder is gone" if self.removed() else f"the state folder cannot be seen: {error.strerror}"
            )
        if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            return "the state folder was replaced by another"
        return None

    def removed(self) -> bool:
        """Whether the folder was deleted, and not only moved away or hidden: what was in it does not come back."""
        return self._handle >= 0 and os.fstat(self._handle).st_nlink == 0

    def make_anew(self) -> None:
        """Put an empty folder where a removed one was, and hold that."""
        former = self._held
        self._take(0.0)
        former.close()


def _lock(handle: int, folder: Path, patience: float) -> None:
    with contextlib.suppress(OSError):  # a file system that cannot lock folders: the file in it has to do
        take_lock(handle, folder, patience)
