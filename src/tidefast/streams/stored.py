"""Domains whose images are stored, not made."""

from __future__ import annotations

from collections.abc import Mapping

from tidefast.corruptions.severity import Scale
from tidefast.datasets import LabelledImages
from tidefast.datasets.imageset import Pixels
from tidefast.streams.domain import Domain
from tidefast.streams.order import Positions
from tidefast.streams.rendering import Rendering


class Stored(Rendering):
    """Looks the images of a domain up in that domain's own set; place p of all sets is the same picture.

    >>> from tidefast.datasets import bundled
    >>> from tidefast.streams import Stream, hold
    >>> foggy = Domain(("fog", 5))
    >>> stream = Stream(bundled(), hold(foggy, 64), rendering=Stored({foggy: bundled()}))
    >>> str(stream[0].domain), len(stream[0])
    ('fog 5', 64)
    """

    def __init__(self, sets: Mapping[Domain, LabelledImages]) -> None:
        self.sets = dict(sets)

    def render(
        self, data: LabelledImages, places: Positions, domain: Domain, *, seed: int, indices: Positions, scale: Scale
    ) -> Pixels:
        return self.sets[domain][places].images
