"""What belongs to one stream: everything that a step changes and a file keeps."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from tidefast.core.record import StepRecord
from tidefast.core.state import State


class SlidingWindow(NamedTuple):
    """What stands for the latest window of images where few others are answered, so that none of it runs again."""

    statistics: Tensor
    """Means and variances of the channels of all batch normalisation layers [2, channels]."""
    logits: Tensor
    """The network's own, of which a method makes its answers [images, classes]."""


@dataclass
class Session:
    """Everything of an adapter that belongs to one stream, in memory."""

    values: Tensor
    """Of the adapted parameters."""
    moments: dict[str, Any]
    """The optimiser's."""
    group: dict[str, Any]
    """The optimiser's settings."""
    began: dict[str, Any]
    """The optimiser's settings at the beginning of the stream: what its adapter was given."""
    states: dict[str, State]
    num_classes: int | None
    step: int
    seed: int
    last: StepRecord | None
    nonfinite: int
    """Unusable batches in a row."""
    recent: Tensor | None
    """The latest images that came in ones and twos, oldest first."""
    fresh: int
    """How many of them no step has used yet."""
    sliding: SlidingWindow | None
    """What they left, as long as the network that they passed is the one that answers; else they pass it again."""

    def tensors(self) -> list[Tensor]:
        """Those that it holds."""
        states = [value for state in self.states.values() for value in state.values()]
        values = [self.values, *self.moments.values(), *self.group.values(), *states, self.recent]
        return [value for value in (*values, *(self.sliding or ())) if isinstance(value, Tensor)]

    def numbers(self) -> int:
        """How many numbers it holds."""
        return sum(tensor.numel() for tensor in self.tensors())


def cloned(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same in memory of its own: moments or settings of an optimiser."""
    return {key: v.clone() if isinstance(v, Tensor) else copy.deepcopy(v) for key, v in values.items()}
