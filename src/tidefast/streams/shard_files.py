"""The files that CCC is published in: tar archives of samples, and what stands in them.

A sample is three members in a row: `sample_<n>.info` (where the image comes from and what was done to it),
`sample_<n>.input.jpg` and `sample_<n>.output.cls` (the label); n begins at 0 in each archive.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from tidefast.core.files import write_atomically
from tidefast.corruptions.names import CCC, canonical
from tidefast.datasets.errors import DatasetError
from tidefast.streams.domain import Domain

_INDEX_FORMAT = "tidefast shard index 1"
_CCC_NAMES = {canonical(name): name for name in CCC}
_INFO = re.compile("".join(rf"\+\+{key}\+\+(.*)" for key in ("dir", "name", "n1", "s1", "n2", "s2")), re.DOTALL)


def shard_name(number: int) -> str:
    """The file name of a shard.

    >>> shard_name(12)
    'serial_00012.tar'
    """
    return f"serial_{number:05d}.tar"


def folder_name(target: float | str, speed: object, seed: int | str) -> str:
    """The folder of a stream; the target is that of its level.

    >>> folder_name(20.0, 1000, 43)
    'baseline_20_transition+speed_1000_seed_43'
    """
    return f"baseline_{target if isinstance(target, str) else format(target, 'g')}_transition+speed_{speed}_seed_{seed}"


@dataclass(frozen=True)
class Info:
    """Where a sample comes from, and its cell: two corruptions with their severities.

    >>> info = Info("n01440764", "ILSVRC2012_val_00000293.JPEG", Domain(("elastic", 0.25), ("fog", 0)))
    >>> info.text()
    '++dir++n01440764++name++ILSVRC2012_val_00000293.JPEG++n1++elastic++s1++0.25++n2++fog++s2++0.0'
    >>> Info.parse(info.text()) == info
    True
    """

    folder: str
    file: str
    domain: Domain

    def text(self) -> str:
        """As it stands in the file."""
        (n1, s1), (n2, s2) = self.domain.corruptions
        first, second = _CCC_NAMES.get(n1, n1), _CCC_NAMES.get(n2, n2)
        return f"++dir++{self.folder}++name++{self.file}++n1++{first}++s1++{s1}++n2++{second}++s2++{s2}"

    @classmethod
    def parse(cls, text: str) -> Info:
        """The reverse of `text`."""
        match = _INFO.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"expected ++dir++...++name++...++n1++...++s1++...++n2++...++s2++..., got {text[:200]!r}")
        folder, file, n1, s1, n2, s2 = match.groups()
        return cls(folder, file, Domain((n1, float(s1)), (n2, float(s2))))


class ShardWriter:
    """Samples to a tar archive; the same samples make the same bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115  # see close
        self._samples = 0

    def add(self, info: Info, image: bytes, suffix: str, label: int) -> None:
        """The next sample; `image` is the content of a file of that kind."""
        members = {"info": info.text().encode(), f"input.{suffix}": image, "output.cls": str(label).encode()}
        for ending, content in members.items():
            member = tarfile.TarInfo(f"sample_{self._samples}.{ending}")
            member.size, member.mode = len(content), 0o444
            self._tar.addfile(member, io.BytesIO(content))
        self._samples += 1

    def close(self) -> None:
        """Write the end of the archive."""
        self._tar.close()


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """What stands where in a shard: for each sample the image's offset and size, its label, its domain's number."""

    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    domains: tuple[Domain, ...]
    classes: dict[int, str]

    def __len__(self) -> int:
        return len(self.labels)

    def domain(self, sample: int) -> Domain:
        """What was done to a sample."""
        return self.domains[int(self.numbers[sample])]


def index_of(path: Path) -> ShardIndex:
    """The index of a shard; kept in a hidden file beside it, where that can be written."""
    status = path.stat()
    kept = path.with_name(f".{path.name}.index.npz")
    stamp = [_INDEX_FORMAT, status.st_size, status.st_mtime_ns]
    index = _read_index(kept, stamp)
    if index is None:
        index = scan(path)
        with contextlib.suppress(OSError):  # a folder that only can be read: the index is made again next time
            write_atomically(kept, _index_content(index, stamp))
    return index


def scan(path: Path) -> ShardIndex:
    """The index, from the archive itself; a truncated or foreign one is a DatasetError that names it."""
    samples: list[_ShardSample] = []
    if not path.is_file():
        raise DatasetError(f"there is no shard {path}")
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # it remembers them all; its types do not say so
                if member.isfile():
                    _add(samples, member, file)
            # Damage after the first member ends the loop like the end of the archive does.
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError("it has no end mark")
        if not samples:
            raise ValueError("it holds no samples")
        finished = [sample.finished() for sample in samples]
    except tarfile.ReadError as error:
        raise DatasetError(f"{path} is truncated or no tar archive: {error}; fetch or generate it again") from error
    except ValueError as error:
        raise DatasetError(f"{path} is not a shard of CCC: {error}") from error
    domains: dict[Domain, int] = {}
    for sample in finished:
        domains.setdefault(sample.info.domain, len(domains))
    return ShardIndex(
        np.array([sample.offset for sample in finished], np.int64),
        np.array([sample.size for sample in finished], np.int64),
        np.array([sample.label for sample in finished], np.int64),
        np.array([domains[sample.info.domain] for sample in finished], np.int64),
        tuple(domains),
        {sample.label: sample.info.folder for sample in finished},
    )


@dataclass(frozen=True)
class _Finished:
    info: Info
    label: int
    offset: int
    size: int


@dataclass
class _ShardSample:
    """A sample as its members come along."""

    name: str
    info: Info | None = None
    label: int | None = None
    image: tuple[int, int] | None = None

    def finished(self) -> _Finished:
        if self.info is None or self.label is None or self.image is None:
            raise ValueError(f"{self.name} lacks one of .info, .input.jpg and .output.cls")
        return _Finished(self.info, self.label, *self.image)


def _add(samples: list[_ShardSample], member: tarfile.TarInfo, file: IO[bytes]) -> None:
    """One member of the archive to the sample it belongs to: the part of the name before the first dot."""
    name, _, ending = member.name.rpartition("/")[2].partition(".")
    if not samples or samples[-1].name != name:
        samples.append(_ShardSample(name))
    sample = samples[-1]
    if ending.startswith("input."):
        sample.image = member.offset_data, member.size
    elif ending in ("info", "output.cls"):
        file.seek(member.offset_data)
        text = file.read(member.size).decode()
        if ending == "info":
            sample.info = Info.parse(text)
        else:
            sample.label = int(text)
            if not 0 <= sample.label < 2**31:
                raise ValueError(f"{member.name} holds the label {text[:40]!r}, expected a whole number from 0 on")


def _index_content(index: ShardIndex, stamp: list[object]) -> bytes:
    about = {
        "stamp": stamp,
        "domains": [domain.corruptions for domain in index.domains],
        "classes": list(index.classes.items()),
    }
    content = io.BytesIO()
    columns = np.stack([index.offsets, index.sizes, index.labels, index.numbers])
    np.savez(content, about=np.array(json.dumps(about)), columns=columns)
    return content.getvalue()


def _read_index(path: Path, stamp: list[object]) -> ShardIndex | None:
    """What is kept of an index, if it is of the shard as it is now."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            about = json.loads(str(stored["about"][()]))
            if about["stamp"] != stamp:
                return None
            offsets, sizes, labels, numbers = stored["columns"]
        domains = tuple(Domain(*((name, severity) for name, severity in pairs)) for pairs in about["domains"])
        classes = {int(label): str(name) for label, name in about["classes"]}
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None  # none yet, or not ours: it costs only the time to scan again
    return ShardIndex(offsets, sizes, labels, numbers, domains, classes)
