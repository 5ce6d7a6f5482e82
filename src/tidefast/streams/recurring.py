"""Streams that come back to domains with batches of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from tidefast.core.validation import require_count
from tidefast.datasets import LabelledImages
from tidefast.streams.batch import RawBatch, Span
from tidefast.streams.domain import Domain
from tidefast.streams.domain_order import DomainOrder, InTurn
from tidefast.streams.rendering import Rendering
from tidefast.streams.schedule import hold
from tidefast.streams.seekable import Seekable
from tidefast.streams.settings import StreamSettings
from tidefast.streams.stream import Stream


class RecurringStream(Seekable):
    """Several streams, one for each domain, visited again and again; every visit shows all batches of each.

    `streams`: those whose batches fall into `visits` equal parts, one for each visit.
    `domain_order`: whose batch comes when within a visit; visit v draws it from `seed` + v. The batches of one stream
    always come in their order.

    >>> from tidefast.datasets import bundled
    >>> from tidefast.streams import Domain, Stream, hold
    >>> streams = [Stream(bundled(), hold(Domain((name, 5)), 128) * 2, cross=False) for name in ("fog", "snow")]
    >>> stream = RecurringStream(streams, visits=2)
    >>> [f"{batch.domain}, visit {batch.spans[0].visit}" for batch in stream.batches(2, 6)]
    ['snow 5, visit 0', 'snow 5, visit 0', 'fog 5, visit 1', 'fog 5, visit 1']
    """

    def __init__(
        self,
        streams: Sequence[Seekable],
        visits: int,
        *,
        domain_order: DomainOrder | None = None,
        seed: int = 0,
        steps: int | None = None,
        name: str = "",
    ) -> None:
        require_count("visits", visits)
        if not streams or any(len(stream) % visits for stream in streams):
            raise ValueError(
                f"a recurring stream needs streams whose batches fall into {visits} equal visits, got streams of "
                f"{', '.join(str(len(stream)) for stream in streams) or 'no'} batches"
            )
        self.streams, self.visits, self.seed, self.name = tuple(streams), visits, seed, name
        self.domain_order: DomainOrder = InTurn() if domain_order is None else domain_order
        self._batches = [len(stream) // visits for stream in self.streams]
        available = visits * sum(self._batches)
        if steps is not None:
            require_count("steps", steps)
            if steps > available:
                raise ValueError(f"steps={steps} is more than the {available} batches of {visits} visits")
        self._steps = available if steps is None else steps

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        extent = f"{len(self)} steps, {len(self.streams)} domains, {self.visits} visits"
        return f"RecurringStream({name}{extent}, seed {self.seed})"

    @property
    def classes(self) -> tuple[str, ...]:
        return self.streams[0].classes

    def __len__(self) -> int:
        return self._steps

    def spans(self, k: SupportsIndex) -> tuple[Span, ...]:
        stream, step = self._locate(k)
        return stream.spans(step)

    def pixels(self, k: SupportsIndex) -> RawBatch:
        stream, step = self._locate(k)
        return dataclasses.replace(stream.pixels(step), index=self._step(k))

    def _locate(self, k: SupportsIndex) -> tuple[Seekable, int]:
        """The stream that batch `k` is from, and which of its batches it is."""
        visit, offset = divmod(self._step(k), sum(self._batches))
        turns = self.domain_order.draw(self._batches, np.random.default_rng(self.seed + visit))
        number = int(turns[offset])
        before = int(np.count_nonzero(turns[:offset] == number))
        return self.streams[number], visit * self._batches[number] + before


def recurring_stream(
    domains: Sequence[tuple[Domain, LabelledImages]],
    settings: StreamSettings,
    *,
    visits: int | None,
    default_visits: int,
    rendering: Rendering | None = None,
    domain_order: DomainOrder | None = None,
    name: str = "",
) -> RecurringStream:
    """Domains that come back and show all of their images at every visit, in the same order with the same noise.

    Without `visits` there are as many as `steps` takes, or else `default_visits`.
    """
    if visits is None:
        short = 0 if settings.ragged == "drop" else settings.batch - 1
        per_visit = max(1, sum((len(images) + short) // settings.batch for _, images in domains))
        visits = default_visits if settings.steps is None else -(-settings.steps // per_visit)
    streams = [
        Stream(
            images,
            hold(domain, len(images)) * visits,
            batch=settings.batch,
            seed=settings.seed,
            order=settings.order,
            renewal="same",
            noise="fixed",
            cross=False,
            ragged=settings.ragged,
            scale=settings.scale,
            rendering=rendering,
        )
        for domain, images in domains
    ]
    return RecurringStream(
        streams, visits, domain_order=domain_order, seed=settings.seed, steps=settings.steps, name=name
    )
