"""What a fleet knows of each of its streams."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from tidefast.core.record import StepRecord
from tidefast.core.session import Session


@dataclass
class StreamEntry:
    """What the fleet knows of a stream. Whoever changes more than a flag of it holds `lock`."""

    name: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    session: Session | None = None
    """None while it lies in `file` only, and before the first images; no step changes it, each makes another."""
    file: Path | None = None
    stored: int = -1
    """What `changed` was when `file` was written."""
    written: tuple[int, Path] | None = None
    """What `changed` was at the last snapshot, and its file there."""
    changed: int = 0
    """How often it changed."""
    frozen: bool = False
    seen: tuple[int, StepRecord | None] = (0, None)
    """Steps, and the record of the last one; one value, so that they always fit together."""


class Taken(NamedTuple):
    """What came of one batch."""

    logits: Tensor
    """[batch, classes]"""
    step: int
    """Of the stream, this call included."""
    record: StepRecord | None
    """None when it only predicted."""
    frozen: bool
