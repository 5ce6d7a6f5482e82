"""The images of CCC: a random piece of a picture, two noises, a JPEG file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidefast.corruptions.randomness import generator
from tidefast.corruptions.severity import Scale
from tidefast.datasets import ImageFolder, LabelledImages
from tidefast.datasets.imageset import Pixels
from tidefast.datasets.picture import read_rgb, require_pillow
from tidefast.streams.domain import Domain
from tidefast.streams.jpeg import QUALITY, stored
from tidefast.streams.order import Positions
from tidefast.streams.rendering import Rendering, corrupted

Box = tuple[int, int, int, int]

_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_TRIES = 10


@dataclass(frozen=True)
class CCCImages(Rendering):
    """Flip and crop at random if asked to, the corruptions of the domain in turn, then JPEG at that quality if any.

    Everything random about an image follows from the seed and its position in the stream. A cropped image has the size
    that the data has: the `crop` of an `ImageFolder`, whose files are then read whole, or that of images in memory.
    """

    crop: bool = True
    jpeg: int | None = QUALITY

    def render(
        self, data: LabelledImages, places: Positions, domain: Domain, *, seed: int, indices: Positions, scale: Scale
    ) -> Pixels:
        images = _pieces(data, places, seed, indices) if self.crop else data[places].images
        images = corrupted(images, domain, seed=seed, indices=indices, scale=scale)
        return images if self.jpeg is None else stored(images, self.jpeg)


def _pieces(data: LabelledImages, places: Positions, seed: int, indices: Positions) -> Pixels:
    """A random piece of each picture, flipped every other time, brought to one size."""
    image_module = require_pillow()
    if isinstance(data, ImageFolder):
        whole: Iterable[Pixels] = (read_rgb(data.paths[place]) for place in places)
        size = (data.crop, data.crop)
    else:
        images = data[places].images
        whole = images
        size = (images.shape[2], images.shape[1])
    pieces = []
    for image, index in zip(whole, indices, strict=True):
        random = generator(seed, int(index), "crop")
        picture: Any = image_module.fromarray(image[:, ::-1] if random.random() < 0.5 else image)
        piece = picture.crop(random_box(picture.width, picture.height, random))
        pieces.append(np.asarray(piece.resize(size, image_module.Resampling.BILINEAR), np.uint8))
    return np.stack(pieces)


def random_box(width: int, height: int, random: np.random.Generator) -> Box:
    """Left, top, right, bottom of a piece with 8 to 100 % of the area and sides of 3:4 to 4:3, drawn at random.

    A draw that does not fit is repeated; after ten the largest such piece of the centre is taken.

    >>> left, top, right, bottom = random_box(500, 375, np.random.default_rng(0))
    >>> 0 <= left < right <= 500, 0 <= top < bottom <= 375
    (True, True)
    >>> random_box(4000, 10, np.random.default_rng(0))
    (1993, 0, 2006, 10)
    """
    for _ in range(_TRIES):
        area = width * height * random.uniform(*_AREA)
        ratio = math.exp(random.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
            return left, top, left + w, top + h
    ratio = min(max(width / height, _RATIO[0]), _RATIO[1])
    w, h = min(width, max(1, round(height * ratio))), min(height, max(1, round(width / ratio)))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
