"""Which image stands where: passes over the image set, drawn without state."""

from __future__ import annotations

import functools
import zlib
from typing import Literal, get_args

import numpy as np

from tidefast.streams.order import Order, Positions

Renewal = Literal["stretch", "same", "stream"]
RENEWALS: tuple[Renewal, ...] = get_args(Renewal)

_PURPOSE = zlib.crc32(b"order")  # keeps these draws apart from the corruptions', whose key also starts with the seed
_REMEMBERED = 4


class ImagePasses:
    """The positions in the image set of any part of the stream.

    A stretch that is longer than the image set goes on with another pass. `renewal` says when a pass begins:
    "stretch": each stretch draws passes of its own; "same": each stretch begins the same passes again; "stream":
    passes run on, whatever the domain.

    >>> from tidefast.streams.order import Shuffled
    >>> passes = ImagePasses(np.array([0, 1, 2]), Shuffled(), seed=0, renewal="stretch")
    >>> sorted(passes.images(stretch=5, start=100, first=103, stop=106).tolist())
    [0, 1, 2]
    """

    def __init__(self, labels: Positions, order: Order, seed: int, renewal: Renewal) -> None:
        self.labels, self.order, self.seed, self.renewal = labels, order, seed, renewal
        # Remembering changes no result: a pass is a function of its number.
        self._recall = functools.lru_cache(_REMEMBERED)(self._draw)

    def __reduce__(self) -> tuple[type[ImagePasses], tuple[Positions, Order, int, Renewal]]:
        return ImagePasses, (self.labels, self.order, self.seed, self.renewal)

    def images(self, stretch: int, start: int, first: int, stop: int) -> Positions:
        """Places in the image set of the stream's images `first` to `stop` in a stretch that begins at `start`."""
        series = stretch if self.renewal == "stretch" else 0
        origin = 0 if self.renewal == "stream" else start
        size = len(self.labels)
        places = []
        while first < stop:
            number, offset = divmod(first - origin, size)
            count = min(size - offset, stop - first)
            places.append(self._recall(series, number)[offset : offset + count])
            first += count
        return np.concatenate(places)

    def _draw(self, series: int, number: int) -> Positions:
        key = np.array([self.seed, series], dtype=np.uint64)
        counter = np.array([0, 0, number, _PURPOSE], dtype=np.uint64)
        return self.order.draw(self.labels, np.random.Generator(np.random.Philox(key=key, counter=counter)))
