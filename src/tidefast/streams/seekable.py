"""What every stream can do: any step at any time, always with the same bits."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from typing import SupportsIndex

from tidefast.core.validation import require_count
from tidefast.streams.batch import Batch, RawBatch, Span
from tidefast.streams.prefetch import prefetched


class Seekable(ABC):
    """A stream of batches; `stream[k]` is a function of the stream and k alone.

    A subclass says how long it is, what its classes are called, and makes `spans` and `pixels` of a step.
    """

    name: str = ""

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...]:
        """The names of the classes that labels stand for."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def spans(self, k: SupportsIndex) -> tuple[Span, ...]:
        """The domains of batch `k` and how many of its images each holds, without making the images.

        >>> from tidefast.streams import make
        >>> [(str(span.domain), span.images) for span in make("clean", steps=10).spans(3)]
        [('clean', 64)]
        """

    @abstractmethod
    def pixels(self, k: SupportsIndex) -> RawBatch:
        """Batch `k` before it becomes tensors: images uint8 [B, H, W, 3]."""

    def __getitem__(self, k: SupportsIndex) -> Batch:
        """Batch `k`; negative numbers count from the end."""
        return self.pixels(k).batch()

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int = 0, stop: int | None = None, workers: int = 0) -> Generator[Batch, None, None]:
        """Batches `start` to `stop`, in order; with `workers` so many processes make them ahead of time.

        The bits do not depend on `workers`. The processes end when the iterator is exhausted, closed or dropped. They
        are spawned, so a script that asks for them needs the usual `if __name__ == "__main__":`.

        >>> from tidefast.streams import make
        >>> [batch.index for batch in make("clean", steps=10).batches(start=7)]
        [7, 8, 9]
        """
        stop = len(self) if stop is None else stop
        require_count("start", start, low=0)
        require_count("stop", stop, low=0)
        require_count("workers", workers, low=0)
        if stop > len(self):
            raise IndexError(f"stop={stop} is outside the stream of {len(self)} steps")
        return prefetched(self, start, stop, workers) if workers else (self[k] for k in range(start, stop))

    def _step(self, k: SupportsIndex) -> int:
        try:
            step = operator.index(k)
        except TypeError:
            raise TypeError(
                f"a step is a whole number, got {k!r}; for a range use stream.batches(start, stop)"
            ) from None
        if not -len(self) <= step < len(self):
            raise IndexError(f"step {step} is outside the stream of {len(self)} steps")
        return step % len(self)
