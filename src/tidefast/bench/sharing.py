"""Runs of a sweep that see the same stream share its batches."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tidefast.bench import assembly
from tidefast.bench.work import Job

_PREFIX = ".batches-"


@contextlib.contextmanager
def sharing(jobs: list[Job], root: Path) -> Iterator[list[Job]]:
    """The jobs, where several see the same stream with a folder for its batches; all of it is gone at the end."""
    streams = [assembly.stream_text(job.experiment) for job in jobs]
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=root, ignore_cleanup_errors=True) as place:
        shared = [text for text, runs in Counter(streams).items() if runs > 1]
        folders = {text: Path(place, str(number)) for number, text in enumerate(shared)}
        for folder in folders.values():
            folder.mkdir()
        yield [dataclasses.replace(job, batches=folders.get(text)) for job, text in zip(jobs, streams, strict=True)]


def remove_left_overs(root: Path) -> None:
    """Delete the batches that a killed sweep left behind."""
    for left_over in root.glob(f"{_PREFIX}*"):
        shutil.rmtree(left_over, ignore_errors=True)


def release(jobs: list[Job]) -> None:
    """Delete the batches of the streams that no job needs any more."""
    users: defaultdict[Path, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.batches is not None:
            users[job.batches].append(job)
    for folder, sharers in users.items():
        if folder.exists() and all(job.is_finished() for job in sharers):
            shutil.rmtree(folder, ignore_errors=True)
