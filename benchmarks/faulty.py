"""`tidefast serve` with a fault on purpose, to see whether a comparison notices it: faulty.py FAULT serve ..."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch

from tidefast import cli
from tidefast.adapter import Adapter
from tidefast.core.record import StepRecord
from tidefast.serve.snapshots import Snapshots

EVERY = 10
"""Calls from one fault to the next."""
_calls = itertools.count(1)
_take, _numbers = Adapter._take, Snapshots.numbers
_foreign: list[torch.Tensor] = []


def _is_due() -> bool:
    return next(_calls) % EVERY == 0


def _skips(adapter: Adapter, images: torch.Tensor, draft: Any) -> Any:
    """A step is counted and answered, and nothing is learned from it."""
    if _is_due():
        turn = adapter.turn(images, draft, adapt=False)
        return adapter._answer(turn, draft, counts=True), StepRecord(draft.step)
    return _take(adapter, images, draft)


def _flips(adapter: Adapter, images: torch.Tensor, draft: Any) -> Any:
    """The last bit of one logit is another."""
    logits, record = _take(adapter, images, draft)
    if _is_due():
        logits = logits.detach().clone()
        logits.view(torch.int32)[0, 0] ^= 1
    return logits, record


def _forgets(adapter: Adapter, images: torch.Tensor, draft: Any) -> Any:
    """Images that were gathered lose one among them that is not yet in a step."""
    done = _take(adapter, images, draft)
    if draft.fresh > 1 and _is_due():
        draft.recent, draft.fresh = draft.recent[:-1], draft.fresh - 1
    return done


def _mixes(adapter: Adapter, images: torch.Tensor, draft: Any) -> Any:
    """Images are answered in the company of another stream's."""
    if _foreign and draft.recent is not None and _is_due():
        draft.recent = _foreign[-1]
    done = _take(adapter, images, draft)
    _foreign[:] = [draft.recent] if draft.recent is not None else []
    return done


def _older(snapshots: Snapshots) -> list[int]:
    """The newest snapshot is passed over at the start."""
    numbers = _numbers(snapshots)
    return numbers[:-1] if sys._getframe(1).f_code.co_name == "restore" else numbers


FAULTS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "skip": (Adapter, "_take", _skips),
    "flip": (Adapter, "_take", _flips),
    "forget": (Adapter, "_take", _forgets),
    "mix": (Adapter, "_take", _mixes),
    "older": (Snapshots, "numbers", _older),
}

if __name__ == "__main__":
    setattr(*FAULTS[sys.argv[1]])
    sys.exit(cli.main(sys.argv[2:]))
