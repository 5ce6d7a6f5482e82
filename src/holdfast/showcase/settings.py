"""What one demonstration runs on: the stream, the network, the length."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

from torch import Tensor, nn

from holdfast import models, streams
from holdfast.validation import require_count


class Batch(Protocol):
    """What the demonstration needs of a batch."""

    @property
    def images(self) -> Tensor:
        """Float [batch, 3, height, width] in [0, 1]."""

    @property
    def labels(self) -> Tensor:
        """Int64 [batch]."""

    @property
    def domain(self) -> object:
        """How the images are disturbed; printable."""


class Stream(Protocol):
    """What the demonstration needs of a stream: batch k is a function of the stream and k alone."""

    def __len__(self) -> int: ...

    def __getitem__(self, k: int, /) -> Batch: ...


@dataclass(frozen=True)
class Settings:
    """Which stream and network, and how long; results under different settings never mix.

    `stream` and `model` are registered names, or `module:function` of your own: the stream's function is called with
    (seed=, steps=, batch=), the model's without arguments.
    """

    steps: int = 1600
    batch: int = 32
    seed: int = 0
    stream: str = "drift"
    model: str = "bundled-resnet"

    def __post_init__(self) -> None:
        require_count("--steps", self.steps, low=8)
        require_count("--batch", self.batch, low=2)
        require_count("--seed", self.seed, low=0)

    def make_stream(self) -> Stream:
        """The stream, from its beginning."""
        make: Callable[..., Stream] = (
            _imported(self.stream) if ":" in self.stream else functools.partial(streams.make, self.stream)
        )
        return make(seed=self.seed, steps=self.steps, batch=self.batch)

    def load_model(self) -> nn.Module:
        """The trained network, in evaluation mode."""
        if ":" in self.model:
            return cast(nn.Module, _imported(self.model)())
        return models.load(self.model)

    def as_dict(self) -> dict[str, Any]:
        """For the file in the results' folder."""
        return asdict(self)


def class_names(stream: Stream, count: int) -> Sequence[str]:
    """The stream's names for its classes, or numbers when it has none."""
    names = tuple(str(name) for name in getattr(stream, "classes", ()))
    return names if len(names) == count else tuple(f"class {index}" for index in range(count))


def _imported(address: str) -> Any:
    module, _, name = address.partition(":")
    return getattr(importlib.import_module(module), name)
