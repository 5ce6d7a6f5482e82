"""The stream: any step at any time, always with the same bits."""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterator
from typing import Literal, SupportsIndex, get_args

import numpy as np

from holdfast.corruptions import corrupt
from holdfast.corruptions.severity import Scale, require_scale
from holdfast.streams.batch import Batch, Pixels, Span
from holdfast.streams.batching import Batching, Ragged
from holdfast.streams.images import Data, labelled_images, nearest_scale
from holdfast.streams.order import Order, Shuffled
from holdfast.streams.passes import RENEWALS, Passes, Renewal
from holdfast.streams.prefetch import prefetched
from holdfast.streams.schedule import Schedule
from holdfast.validation import require_choice, require_count

Noise = Literal["fresh", "fixed"]
NOISES: tuple[Noise, ...] = get_args(Noise)


class Stream:
    """Batches of labelled images under a schedule of corruptions; `stream[k]` is a function of the stream and k alone.

    `data`: an ImageSet, an ImageFolder, a pair (images uint8 [N, H, W, 3], labels), or None for the bundled images.
    `order`: how the images of one pass over the data are ordered; `renewal`: when a new pass begins (see `Passes`).
    `batch`, `cross`, `ragged`, `steps`: how the schedule is cut into batches (see `Batching`).
    `noise`: "fresh" draws the corruptions' noise anew at every position of the stream; "fixed" gives an image the
    same noise whenever it comes back under the same corruption, as data sets of stored files do.
    `scale`: the constants of the corruptions, by default those nearer to the size of the images.

    >>> from holdfast.streams import Domain, hold
    >>> schedule = hold(Domain(("fog", 3)), images=100) + hold(Domain(), images=50)
    >>> stream = Stream(None, schedule, batch=64)
    >>> len(stream), [len(batch) for batch in stream]
    (3, [64, 64, 22])
    >>> batch = stream[2]
    >>> batch.images.shape, str(batch.domain), batch.index
    (torch.Size([22, 3, 32, 32]), 'clean', 2)
    >>> bool((batch.images == list(stream.batches(start=2))[0].images).all())
    True
    """

    def __init__(
        self,
        data: Data | None,
        schedule: Schedule,
        *,
        batch: int = 64,
        seed: int = 0,
        steps: int | None = None,
        order: Order | None = None,
        renewal: Renewal = "stretch",
        noise: Noise = "fresh",
        cross: bool = True,
        ragged: Ragged = "keep",
        scale: Scale | None = None,
        name: str = "",
    ) -> None:
        if not isinstance(schedule, Schedule):
            raise TypeError(
                f"schedule must be a Schedule, such as hold(Domain(('fog', 3)), images=500), got {schedule!r}"
            )
        require_count("seed", seed, low=0)
        if seed >= 2**64:
            raise ValueError(f"seed must be below 2**64, got {seed}")
        require_choice("renewal", renewal, RENEWALS)
        require_choice("noise", noise, NOISES)
        if order is not None and not isinstance(order, Order):
            raise TypeError(f"order must be an Order, such as Shuffled() or Dirichlet(0.1), got {order!r}")
        self.schedule, self.seed, self.noise, self.name = schedule, seed, noise, name
        self.batching = Batching(schedule, batch, cross=cross, ragged=ragged, steps=steps)
        self.data = labelled_images(data)
        self.scale: Scale = nearest_scale(self.data) if scale is None else scale
        require_scale(self.scale)
        self.passes = Passes(self.data.labels, Shuffled() if order is None else order, seed, renewal)

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return f"Stream({name}{len(self)} steps of {self.batching.size}, {len(self.data)} images, seed {self.seed})"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes that labels stand for."""
        return self.data.classes

    def __len__(self) -> int:
        return len(self.batching)

    def __getitem__(self, k: SupportsIndex) -> Batch:
        """Batch `k`; negative numbers count from the end."""
        return self.pixels(k).batch()

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int = 0, stop: int | None = None, workers: int = 0) -> Generator[Batch, None, None]:
        """Batches `start` to `stop`, in order; with `workers` so many processes make them ahead of time.

        The bits do not depend on `workers`. The processes end when the iterator is exhausted, closed or dropped. They
        are spawned, so a script that asks for them needs the usual `if __name__ == "__main__":`.

        >>> from holdfast.streams import make
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

    def spans(self, k: SupportsIndex) -> tuple[Span, ...]:
        """The domains of batch `k` and how many of its images each holds, without making the images.

        >>> from holdfast.streams import make
        >>> [(str(span.domain), span.images) for span in make("clean", steps=10).spans(3)]
        [('clean', 64)]
        """
        return tuple(span for _, span, _, _ in self._pieces(k))

    def pixels(self, k: SupportsIndex) -> Pixels:
        """Batch `k` before it becomes tensors: images uint8 [B, H, W, 3]."""
        pieces = self._pieces(k)
        chosen = [self.passes.images(i, self.schedule.start(i), first, stop) for i, _, first, stop in pieces]
        corrupted = []
        for (_, span, first, stop), places in zip(pieces, chosen, strict=True):
            images = self.data[places].images
            indices = np.arange(first, stop) if self.noise == "fresh" else places
            for name, severity in span.domain.active:
                images = corrupt(images, name, severity, seed=self.seed, scale=self.scale, indices=indices)
            corrupted.append(images)
        labels = self.data.labels[np.concatenate(chosen)]
        return Pixels(np.concatenate(corrupted), labels, self._step(k), tuple(span for _, span, _, _ in pieces))

    def _pieces(self, k: SupportsIndex) -> list[tuple[int, Span, int, int]]:
        """The stretches that batch `k` touches, each with its span and the positions of its images."""
        first, last = self.batching.bounds(self._step(k))
        pieces = []
        while first < last:
            i = self.schedule.stretch_at(first)
            stretch = self.schedule.stretches[i]
            stop = min(last, int(self.schedule.ends[i]))
            pieces.append((i, Span(stretch.domain, stretch.visit, stop - first), first, stop))
            first = stop
        return pieces

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
