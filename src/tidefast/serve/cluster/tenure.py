"""Who is in charge of a partition: terms of office that no two processes share, each with a folder of its own.

The partition's folder is on storage that all nodes see:

    terms/000007          a term that was claimed; who creates the file has it, the highest number is in charge
    terms/000007.ended    its holder has given it up, and will answer nothing any more
    000007/               the state folder of the term, which nobody but its holder writes to

Two rules keep two processes from advancing one stream.

Writing. A holder writes to the folder of its own term alone. Its successor takes over what is in there, once, by links
into another folder. What a former holder still writes, however late it wakes, lands where nobody looks any more.

Answering. A holder may answer only for 4/5 of a lease after it last looked, and saw no claim above its own. A successor
claims first, and then waits a whole lease, by its own clock, before it reads anything: by then every former holder has
either looked, seen the claim and ended its term, or has not looked and answers nothing. It need not wait for a holder
that has ended its term, or whose process is dead for certain: same kernel, and the lock on its folder is free.

The clocks of nodes need not agree, only run at the same speed, within a fifth. Clocks go on while a process is stopped,
and on Linux while the machine sleeps.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tidefast.core.files import write_atomically
from tidefast.errors import FolderError, TidefastError
from tidefast.fleet.manifest import appearing, flush, link
from tidefast.serve.hold import FolderHold

LOOKS = 5
"""In a lease a holder looks so many times for claims above its own."""

_SAFE = 0.8  # of a lease, after a look, a holder may answer
_NUMBER = re.compile(r"\d{6,12}")
_log = logging.getLogger("tidefast.serve")


class LostTenureError(TidefastError):
    """Another process has claimed the partition."""


def _clock() -> float:
    """Seconds, those that the machine slept included where the system counts them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Tenure:
    """A term in charge of one partition, claimed at construction; in charge from `take_over` on, as long as `holds`.

    folder: of the partition.
    lease: seconds; the same for all who claim this partition.
    """

    def __init__(self, folder: Path, lease: float, clock: Callable[[], float] = _clock) -> None:
        self._partition, self._terms, self._lease, self._clock = folder, folder / "terms", lease, clock
        self._looked = -float("inf")
        self._looking = threading.Lock()
        self.lost = False
        """Whether somebody else has claimed the partition since."""
        self.ended = False
        self._terms.mkdir(parents=True, exist_ok=True)
        self.number = self._claim()
        self._claimed = clock()

    @property
    def folder(self) -> Path:
        """What only the holder of this term writes to; there after `take_over`."""
        return self._folder_of(self.number)

    def _claim(self) -> int:
        about = json.dumps({"host": socket.gethostname(), "process": os.getpid(), "kernel": _kernel()}).encode()
        while True:
            number = max([0, *self._claims(), *self._folders()]) + 1
            with contextlib.suppress(FileExistsError), open(self._terms / f"{number:06d}", "xb") as file:
                file.write(about)
                file.flush()
                os.fsync(file.fileno())
                flush(self._terms)
                return number

    def take_over(self) -> None:
        """Wait until every former holder answers no more, and make the folder of this term from that of the last.

        A LostTenureError when another process claims the partition meanwhile.
        """
        former = [number for number in self._claims() if number < self.number]
        while former and self._clock() < self._claimed + self._lease:
            former = [number for number in former if not self._is_gone(number)]
            self._require_highest()
            time.sleep(min(0.1, self._lease / LOOKS) if former else 0.0)
        self._require_highest()
        source = max((number for number in self._folders() if number < self.number), default=None)
        with appearing(self.folder) as building:
            if source is not None:
                _adopt(self._folder_of(source), building)
        self._clear_away(source)

    def _is_gone(self, number: int) -> bool:
        """Whether the holder of a former term will certainly answer nothing any more."""
        if (self._terms / f"{number:06d}.ended").exists():
            return True
        try:
            kernel = json.loads((self._terms / f"{number:06d}").read_bytes())["kernel"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        folder = self._folder_of(number)
        if not kernel or kernel != _kernel() or not folder.is_dir():
            return False  # locks of another machine may not reach us
        try:
            FolderHold(folder).close()
        except (FolderError, OSError):
            return False
        return True

    def look(self) -> bool:
        """Look for claims above this one, which prolongs the lease when there are none; whether this one holds.

        An OSError when the storage cannot be seen: the lease then runs out.
        """
        with self._looking:
            began = self._clock()
            self._require_highest()
            self._looked = began
        return self.holds()

    def holds(self) -> bool:
        """Whether the holder of this term may answer, now."""
        return not (self.lost or self.ended) and self._clock() < self._looked + _SAFE * self._lease

    def end(self) -> None:
        """Give the term up: a successor need not wait. Whatever is to be kept has been written by now."""
        self.ended = True
        write_atomically(self._terms / f"{self.number:06d}.ended", b"")

    # -- inside -----------------------------------------------------------------------------------------------

    def _require_highest(self) -> None:
        claims = self._claims()
        if self.number not in claims:
            raise FileNotFoundError(f"the claims on {self._partition} are gone")
        if max(claims) > self.number:
            self.lost = True
            raise LostTenureError(f"{self._partition.name} was claimed for term {max(claims)}, this is {self.number}")

    def _folder_of(self, number: int) -> Path:
        return self._partition / f"{number:06d}"

    def _claims(self) -> list[int]:
        return _numbers(self._terms)

    def _folders(self) -> list[int]:
        return _numbers(self._partition)

    def _clear_away(self, source: int | None) -> None:
        """What former terms left, but for the folder that was taken over; their holders are past answering."""
        for number in self._claims():
            if number < self.number:
                for name in (f"{number:06d}", f"{number:06d}.ended"):
                    (self._terms / name).unlink(missing_ok=True)
        for number in self._folders():
            if number < (source or 0):
                shutil.rmtree(self._folder_of(number), ignore_errors=True)
        for left_over in self._partition.glob(".*.tmp"):  # such as .000007.1f2e3d4c.tmp, see `appearing`
            if int(left_over.name.split(".")[1]) < self.number:
                shutil.rmtree(left_over, ignore_errors=True)


def _adopt(source: Path, building: Path) -> None:
    """Snapshots by links, and the journal, of a former term."""
    snapshots = building / "snapshots"
    snapshots.mkdir()
    for _ in range(3):
        numbers = _numbers(source / "snapshots") if (source / "snapshots").is_dir() else []
        for name in (f"{number:06d}" for number in sorted(numbers, reverse=True)):
            with contextlib.suppress(FileNotFoundError), appearing(snapshots / name) as folder:
                for file in (source / "snapshots" / name).iterdir():
                    link(file, folder / file.name)
        if not numbers or any(snapshots.iterdir()):
            break  # else the former holder has replaced all of them meanwhile
    else:
        raise FileNotFoundError(f"the snapshots in {source} vanish while they are read")
    journal = source / "journal.jsonl"
    if journal.exists():
        write_atomically(building / journal.name, journal.read_bytes())


def _numbers(folder: Path) -> list[int]:
    """Files and folders in it that have a number for a name."""
    return [int(path.name) for path in folder.iterdir() if _NUMBER.fullmatch(path.name)]


def _kernel() -> str:
    """What tells this machine, since it was started, from all others; empty where nothing does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
