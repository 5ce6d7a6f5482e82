"""Files that hold tensors and JSON values, are written whole or not at all, and notice damage."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from tidefast.core.files import write_atomically
from tidefast.errors import FORMER_NAME, SnapshotError, of_former_name

VERSION = 1
_KEY = "tidefast"


def write(
    path: str | os.PathLike[str],
    kind: str,
    tensors: Mapping[str, Tensor],
    content: Mapping[str, Any],
    *,
    durable: bool = True,
) -> None:
    """Write a snapshot atomically: after a crash at any moment the old file or the new one is there, whole."""
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(dict(content), sort_keys=True, allow_nan=False)
    header = {"kind": kind, "version": VERSION, "content": text, "digest": _digest(kind, VERSION, stored, text)}
    write_atomically(path, safetensors.torch.save(stored, metadata={_KEY: json.dumps(header)}), durable=durable)


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a snapshot back, checked against its digest; anything wrong with it is a SnapshotError.

    A file that cannot be read now (an OSError, or a MemoryError) may be whole: that says nothing about it.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no snapshot at {path}")
    data = path.read_bytes()  # not mapped: an error of the disk would then end the process
    try:
        tensors = safetensors.torch.load(data)
        metadata = _metadata(data)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        if is_out_of_memory(error):
            raise MemoryError(f"there is no memory to read {path}") from error
        raise SnapshotError(f"{path} is not a whole snapshot (truncated or damaged): {error}") from error
    if FORMER_NAME in metadata:
        raise SnapshotError(of_former_name(path))
    try:
        header = json.loads(metadata[_KEY])
        version, stored_kind, text, digest = (header[key] for key in ("version", "kind", "content", "digest"))
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotError(f"{path} is not a tidefast snapshot") from error
    if not isinstance(version, int) or version > VERSION:
        raise SnapshotError(f"{path} has format version {version}; this tidefast reads up to {VERSION}: upgrade it")
    if digest != _digest(stored_kind, version, tensors, text):
        raise SnapshotError(f"{path} is damaged: its content does not match its digest")
    if stored_kind != kind:
        raise SnapshotError(f"{path} is a file of kind {stored_kind!r}, expected {kind!r}")
    return tensors, json.loads(text)


def _metadata(data: bytes) -> dict[str, str]:
    """What a safetensors file says beside its tensors."""
    length = int.from_bytes(data[:8], "little")
    metadata: dict[str, str] = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return metadata


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was missing; torch has no error of its own for that.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_out_of_memory(ValueError())
    (True, False)
    """
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Digest of names, shapes, types and values."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\0{tuple(tensor.shape)}{tensor.dtype}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _digest(kind: object, version: int, tensors: Mapping[str, Tensor], text: object) -> str:
    whole = f"{kind}\0{version}\0{digest_of(tensors)}\0{text}"
    return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()
