"""How an image of the data set becomes an image of the stream."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tidefast.corruptions import corrupt
from tidefast.corruptions.severity import Scale
from tidefast.datasets import LabelledImages
from tidefast.datasets.imageset import Pixels
from tidefast.streams.domain import Domain
from tidefast.streams.order import Positions


class Rendering(ABC):
    """Makes the images of one domain; a pure function of its arguments, so that a stream stays seekable."""

    @abstractmethod
    def render(
        self, data: LabelledImages, places: Positions, domain: Domain, *, seed: int, indices: Positions, scale: Scale
    ) -> Pixels:
        """Images [n, H, W, 3] of `data` at `places`, under `domain`; `indices` key what is drawn for each of them."""


class Corrupted(Rendering):
    """The images under the corruptions of the domain, one after the other."""

    def render(
        self, data: LabelledImages, places: Positions, domain: Domain, *, seed: int, indices: Positions, scale: Scale
    ) -> Pixels:
        return corrupted(data[places].images, domain, seed=seed, indices=indices, scale=scale)


def corrupted(images: Pixels, domain: Domain, *, seed: int, indices: Positions, scale: Scale) -> Pixels:
    """Images under the corruptions of a domain, one after the other."""
    for name, severity in domain.active:
        images = corrupt(images, name, severity, seed=seed, scale=scale, indices=indices)
    return images
