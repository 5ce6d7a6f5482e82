"""How a cluster's state folder is divided: which partition a stream belongs to, and where that keeps its state."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from tidefast.errors import FolderError

_FILE = "cluster.json"


def partition_of(name: str, partitions: int) -> int:
    """The partition of a stream, the same everywhere and always.

    >>> [partition_of(name, 4) for name in ("camera-1", "camera-2", "camera-3")]
    [0, 1, 0]
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % partitions


@dataclass(frozen=True)
class ClusterLayout:
    """What the state folder of a cluster says of itself."""

    partitions: int
    identity: str
    """By which a node sees that it has the same storage as the others."""

    @staticmethod
    def folder_of(state: Path, partition: int) -> Path:
        """Where a partition keeps its state."""
        return state / f"partition-{partition:04d}"


def read_layout(state: Path) -> ClusterLayout | None:
    """What a folder says of itself; None when it says nothing."""
    try:
        return ClusterLayout(**json.loads((state / _FILE).read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise FolderError(f"{state / _FILE} is damaged: {error}") from error


def require_no_cluster(state: Path) -> None:
    """A FolderError where a cluster keeps its streams: one process would not see them, and begin others beside them."""
    if read_layout(state) is not None:
        raise FolderError(f"{state} holds the streams of a cluster: give --cluster too, or --state another folder")


def made_layout(state: Path, partitions: int | None, otherwise: int) -> ClusterLayout:
    """The layout of a state folder, made when there is none; `otherwise` is for those who do not care."""
    if (state / "snapshots").exists():
        raise FolderError(
            f"{state} holds the streams of a service without --cluster: give --state another folder, or leave it out"
        )
    state.mkdir(parents=True, exist_ok=True)
    if read_layout(state) is None:
        new = ClusterLayout(partitions or otherwise, secrets.token_hex(8))
        building = state / f".{_FILE}.{new.identity}.tmp"
        building.write_text(json.dumps(asdict(new)), encoding="utf-8")
        with contextlib.suppress(FileExistsError):  # another node was first
            (state / _FILE).hardlink_to(building)
        building.unlink()
    layout = read_layout(state)
    assert layout is not None
    if partitions not in (None, layout.partitions):
        raise FolderError(
            f"{state} is divided into {layout.partitions} partitions, got --partitions {partitions}: a stream would be "
            "looked for where it is not; leave the option out, or give --state another folder"
        )
    return layout
