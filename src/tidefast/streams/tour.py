"""Streams that go back and forth between domains with batches of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from tidefast.core.validation import require_count
from tidefast.streams.batch import Pixels, Span
from tidefast.streams.domain import Domain
from tidefast.streams.images import LabelledImages
from tidefast.streams.rendering import Rendering
from tidefast.streams.request import Request
from tidefast.streams.route import InTurn, Route
from tidefast.streams.schedule import hold
from tidefast.streams.seekable import Seekable
from tidefast.streams.stream import Stream


class Tour(Seekable):
    """Several streams, one for each domain, visited again and again; every visit shows all batches of each.

    `tracks`: streams whose batches fall into `visits` equal parts, one for each visit.
    `route`: in which order their batches come within a visit; visit v draws it from `seed` + v. A track's own batches
    always come in their order.

    >>> from tidefast.datasets import bundled
    >>> from tidefast.streams import Domain, Stream, hold
    >>> tracks = [Stream(bundled(), hold(Domain((name, 5)), 128) * 2, cross=False) for name in ("fog", "snow")]
    >>> tour = Tour(tracks, visits=2)
    >>> [f"{batch.domain}, visit {batch.spans[0].visit}" for batch in tour.batches(2, 6)]
    ['snow 5, visit 0', 'snow 5, visit 0', 'fog 5, visit 1', 'fog 5, visit 1']
    """

    def __init__(
        self,
        tracks: Sequence[Seekable],
        visits: int,
        *,
        route: Route | None = None,
        seed: int = 0,
        steps: int | None = None,
        name: str = "",
    ) -> None:
        require_count("visits", visits)
        if not tracks or any(len(track) % visits for track in tracks):
            raise ValueError(
                f"a tour needs streams whose batches fall into {visits} equal visits, got streams of "
                f"{', '.join(str(len(track)) for track in tracks) or 'no'} batches"
            )
        self.tracks, self.visits, self.seed, self.name = tuple(tracks), visits, seed, name
        self.route: Route = InTurn() if route is None else route
        self._batches = [len(track) // visits for track in self.tracks]
        available = visits * sum(self._batches)
        if steps is not None:
            require_count("steps", steps)
            if steps > available:
                raise ValueError(f"steps={steps} is more than the {available} batches of {visits} visits")
        self._steps = available if steps is None else steps

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return f"Tour({name}{len(self)} steps, {len(self.tracks)} domains, {self.visits} visits, seed {self.seed})"

    @property
    def classes(self) -> tuple[str, ...]:
        return self.tracks[0].classes

    def __len__(self) -> int:
        return self._steps

    def spans(self, k: SupportsIndex) -> tuple[Span, ...]:
        track, place = self._locate(k)
        return track.spans(place)

    def pixels(self, k: SupportsIndex) -> Pixels:
        track, place = self._locate(k)
        return dataclasses.replace(track.pixels(place), index=self._step(k))

    def _locate(self, k: SupportsIndex) -> tuple[Seekable, int]:
        """The stream that batch `k` is from, and which of its batches it is."""
        visit, offset = divmod(self._step(k), sum(self._batches))
        turns = self.route.draw(self._batches, np.random.default_rng(self.seed + visit))
        number = int(turns[offset])
        before = int(np.count_nonzero(turns[:offset] == number))
        return self.tracks[number], visit * self._batches[number] + before


def recurring_tour(
    domains: Sequence[tuple[Domain, LabelledImages]],
    request: Request,
    *,
    visits: int | None,
    default_visits: int,
    rendering: Rendering | None = None,
    route: Route | None = None,
    name: str = "",
) -> Tour:
    """A tour of domains that show all of their images at every visit, in the same order with the same noise.

    Without `visits` there are as many as `steps` takes, or else `default_visits`.
    """
    if visits is None:
        short = 0 if request.ragged == "drop" else request.batch - 1
        per_visit = max(1, sum((len(images) + short) // request.batch for _, images in domains))
        visits = default_visits if request.steps is None else -(-request.steps // per_visit)
    tracks = [
        Stream(
            images,
            hold(domain, len(images)) * visits,
            batch=request.batch,
            seed=request.seed,
            order=request.order,
            renewal="same",
            noise="fixed",
            cross=False,
            ragged=request.ragged,
            scale=request.scale,
            rendering=rendering,
        )
        for domain, images in domains
    ]
    return Tour(tracks, visits, route=route, seed=request.seed, steps=request.steps, name=name)
