"""Batches that are made once, by whichever process needs them first."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import SupportsIndex

import numpy as np

from tidefast.core.files import written_atomically
from tidefast.datasets import LabelledImages
from tidefast.streams.batch import RawBatch, Span
from tidefast.streams.seekable import Seekable

LIMIT = 6 * 2**30
"""Bytes that the batches of one stream may take up: those of CCC's own length at 32 pixels do."""

_SPARE = 4 * 2**30  # bytes of the disk that are left to others
_AHEAD = 8  # batches


class CachedStream(Seekable):
    """A stream whose batches are files of a folder once they have been made; processes that share the folder share
    the work.

    A batch is a file of its own, whole or not there. Where two processes are at the same batch, the second makes a
    later one meanwhile. Nobody ever waits, and a batch that cannot be kept, because the disk is full, the folder is
    gone or the stream is longer than `limit` bytes, is made as if there were no folder. The folder must not hold
    batches of another stream.

    >>> import tempfile
    >>> from tidefast.streams import make
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cached = CachedStream(make("clean", steps=3, batch=16), folder)
    ...     batch = cached[1]
    ...     print(len(cached), len(batch), [path.name for path in Path(folder).iterdir()])
    3 16 ['1.batch']
    """

    def __init__(self, stream: Seekable, folder: str | os.PathLike[str], limit: int = LIMIT) -> None:
        self.stream, self.folder, self.name = stream, Path(folder), stream.name
        self._limit = limit // len(stream)  # of each batch, so that all of them stay below it
        self._keeps = True

    def __repr__(self) -> str:
        return f"CachedStream({self.stream!r})"

    @property
    def classes(self) -> tuple[str, ...]:
        return self.stream.classes

    @property
    def data(self) -> LabelledImages | None:
        """The clean images, if the stream has any."""
        return getattr(self.stream, "data", None)

    def __len__(self) -> int:
        return len(self.stream)

    def spans(self, k: SupportsIndex) -> tuple[Span, ...]:
        return self.stream.spans(k)

    def pixels(self, k: SupportsIndex) -> RawBatch:
        step = self._step(k)
        stored = self._read(step)
        if stored is None and self._keeps and not self._claim(step):
            self._help(step)
            stored = self._read(step)
        return self._make(step) if stored is None else stored

    def _help(self, step: int) -> None:
        """Make the next batch that nobody is at, while another process makes this one."""
        for later in range(step + 1, min(step + 1 + _AHEAD, len(self))):
            if not self._path(later).exists() and self._claim(later):
                self._make(later)
                return

    def _make(self, step: int) -> RawBatch:
        made = self.stream.pixels(step)
        if self._keeps:
            try:
                self._keeps = self._has_room(made)
                if self._keeps:
                    self._write(step, made)
            except OSError:
                self._keeps = False
                self._give_back()
            with contextlib.suppress(OSError):
                self._mark(step).unlink()
        return made

    def _has_room(self, made: RawBatch) -> bool:
        small = made.images.nbytes + made.labels.nbytes <= self._limit
        return small and shutil.disk_usage(self.folder).free > _SPARE

    def _write(self, step: int, made: RawBatch) -> None:
        with written_atomically(self._path(step), durable=False) as file:
            np.save(file, made.images, allow_pickle=False)
            np.save(file, made.labels, allow_pickle=False)

    def _give_back(self) -> None:
        """The disk is full, most likely, and the results need the room. Without the folder, the others stop as well."""
        with contextlib.suppress(OSError):
            for pattern in ("*.batch", "*.begun"):
                for path in self.folder.glob(pattern):
                    path.unlink(missing_ok=True)
            self.folder.rmdir()

    def _claim(self, step: int) -> bool:
        """Whether this process is to make the batch; one who cannot say so is."""
        try:
            self._mark(step).touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:
            self._keeps = False
        return True

    def _read(self, step: int) -> RawBatch | None:
        try:
            with open(self._path(step), "rb") as file:
                images, labels = (np.load(file, allow_pickle=False) for _ in range(2))
        except (OSError, ValueError, EOFError):
            return None
        return RawBatch(images, labels, step, self.stream.spans(step))

    def _path(self, step: int) -> Path:
        return self.folder / f"{step}.batch"

    def _mark(self, step: int) -> Path:
        return self.folder / f"{step}.begun"
