"""IN-D109 recurring: four kinds of pictures of 109 classes, visited again and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tidefast.core.constraints import Count
from tidefast.datasets import DatasetError, LabelledImages, Subset, d109
from tidefast.datasets.d109 import DOMAINS
from tidefast.streams.domain import Domain
from tidefast.streams.images import Data, labelled_images
from tidefast.streams.named import Recipe, registry
from tidefast.streams.protocols.files import FilePath
from tidefast.streams.recurring import RecurringStream, recurring_stream
from tidefast.streams.settings import StreamSettings

_SPLIT_SEED = 109


@dataclass(frozen=True)
class OwnImages(Recipe, ABC):
    """Domains in turn, each with images of its own, all of them at every visit in the same order."""

    visits: Count | None = None

    @abstractmethod
    def sets(self, data: Data | None) -> dict[Domain, LabelledImages]:
        """The images of each domain, in the order of the domains."""

    def stream(self, data: Data | None, settings: StreamSettings) -> RecurringStream:
        return recurring_stream(
            list(self.sets(data).items()),
            settings,
            visits=self.visits,
            default_visits=20,
            name=self.name,
        )


@registry.register("in-d109-recurring")
@dataclass(frozen=True)
class InD109Recurring(OwnImages):
    """IN-D109 recurring: clipart, infograph, painting and sketch in turn, all images of each, 20 visits.

    Labels are 0 to 108; a network of 1000 classes answers with `tidefast.models.selection.select_classes`.
    """

    root: FilePath | None = None
    lists: FilePath | None = None

    needs: ClassVar[str] = (
        "root: the cleaned DomainNet as root/<domain>/<class>/<image>.jpg for the domains "
        f"{', '.join(DOMAINS)}; and, if the images are to be those of published lists, lists: a folder with "
        "<domain>_list.txt, lines of a path under root and a label"
    )

    def sets(self, data: Data | None) -> dict[Domain, LabelledImages]:
        if data is not None:
            raise ValueError(f"{self.name!r} reads folders of its own: give root= instead of data")
        if self.root is None:
            raise DatasetError(f"stream {self.name!r} was given no images; it needs {self.needs}")
        return {Domain(label=name): d109(self.root, name, self.lists) for name in DOMAINS}


@registry.register("in-d109-recurring-mini")
@dataclass(frozen=True)
class InD109RecurringMini(OwnImages):
    """IN-D109 recurring in small: the bundled images in four parts, each under a corruption that stands for its style.

    The parts have the proportions of the four domains, and no image in common. Nothing is drawn or painted: contrast,
    snow, pixelate and saturate merely look different from one another.

    >>> from tidefast.streams import make
    >>> stream = make("in-d109-recurring-mini", visits=2)
    >>> [str(part[0].domain) for part in stream.streams]
    ['contrast 3', 'snow 3', 'pixelate 5', 'saturate 5']
    >>> stream
    RecurringStream('in-d109-recurring-mini', 98 steps, 4 domains, 2 visits, seed 0)
    """

    styles: ClassVar[tuple[Domain, ...]] = (
        Domain(("contrast", 3)),
        Domain(("snow", 3)),
        Domain(("pixelate", 5)),
        Domain(("saturate", 5)),
    )

    def sets(self, data: Data | None) -> dict[Domain, LabelledImages]:
        images = labelled_images(data)
        shares = np.cumsum(list(DOMAINS.values())) / sum(DOMAINS.values())
        cuts = np.round(shares[:-1] * len(images)).astype(np.int64)
        parts = np.split(np.random.default_rng(_SPLIT_SEED).permutation(len(images)), cuts)
        if not all(map(len, parts)):
            raise ValueError(
                f"{len(images)} images are too few for {len(self.styles)} domains with images of their own"
            )
        return {domain: Subset(images, part) for domain, part in zip(self.styles, parts, strict=True)}
