"""Streams that are made on the fly: a data set, a schedule of domains, and a rendering."""

from __future__ import annotations

from typing import Literal, SupportsIndex, get_args

import numpy as np

from tidefast.core.validation import require_choice, require_count
from tidefast.corruptions.severity import Scale, require_scale
from tidefast.streams.batch import RawBatch, Span
from tidefast.streams.batching import Batching, Ragged
from tidefast.streams.images import Data, labelled_images, nearest_scale
from tidefast.streams.order import Order, Shuffled
from tidefast.streams.passes import RENEWALS, ImagePasses, Renewal
from tidefast.streams.rendering import Corrupted, Rendering
from tidefast.streams.schedule import Schedule
from tidefast.streams.seekable import Seekable

Noise = Literal["fresh", "fixed"]
NOISES: tuple[Noise, ...] = get_args(Noise)


class Stream(Seekable):
    """Batches of labelled images under a schedule of corruptions; `stream[k]` is a function of the stream and k alone.

    `data`: an ImageSet, an ImageFolder, a pair (images uint8 [N, H, W, 3], labels), or None for the bundled images.
    `order`: how the images of one pass over the data come; `renewal`: when a new pass begins (see `ImagePasses`).
    `batch`, `cross`, `ragged`, `steps`: how the schedule is cut into batches (see `Batching`).
    `noise`: "fresh" draws the corruptions' noise anew at every position of the stream; "fixed" gives an image the
    same noise whenever it comes back under the same corruption, as data sets of stored files do.
    `scale`: the constants of the corruptions, by default those nearer to the size of the images.
    `rendering`: how an image and a domain become an image of the stream; by default the domain's corruptions.

    >>> from tidefast.streams import Domain, hold
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
        rendering: Rendering | None = None,
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
        self.rendering: Rendering = Corrupted() if rendering is None else rendering
        self.passes = ImagePasses(self.data.labels, Shuffled() if order is None else order, seed, renewal)

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return f"Stream({name}{len(self)} steps of {self.batching.size}, {len(self.data)} images, seed {self.seed})"

    @property
    def classes(self) -> tuple[str, ...]:
        return self.data.classes

    def __len__(self) -> int:
        return len(self.batching)

    def spans(self, k: SupportsIndex) -> tuple[Span, ...]:
        return tuple(span for _, span, _, _ in self._pieces(k))

    def pixels(self, k: SupportsIndex) -> RawBatch:
        pieces = self._pieces(k)
        chosen = [self.passes.images(i, self.schedule.start(i), first, stop) for i, _, first, stop in pieces]
        images = []
        for (_, span, first, stop), places in zip(pieces, chosen, strict=True):
            indices = np.arange(first, stop) if self.noise == "fresh" else places
            images.append(
                self.rendering.render(self.data, places, span.domain, seed=self.seed, indices=indices, scale=self.scale)
            )
        labels = self.data.labels[np.concatenate(chosen)]
        return RawBatch(np.concatenate(images), labels, self._step(k), tuple(span for _, span, _, _ in pieces))

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
