"""One step of a stream."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tidefast.datasets import as_tensor
from tidefast.streams.domain import Domain


@dataclass(frozen=True)
class Span:
    """So many images of a batch in a row that share a domain and a visit."""

    domain: Domain
    visit: int
    images: int


@dataclass(frozen=True, eq=False)
class Batch:
    """What an adapter is given at one step.

    `images` float32 [B, 3, H, W] in [0, 1]; `labels` int64 [B]; `index` is the step. `spans` says, image after image,
    which domain was in force; `domain` is that of most of the images, the earlier one on a tie.
    """

    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    domain: Domain
    index: int
    spans: tuple[Span, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class RawBatch:
    """A batch as it travels between processes: a quarter of the bytes, and no tensors."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    index: int
    spans: tuple[Span, ...]

    def batch(self) -> Batch:
        """The batch as tensors."""
        return Batch(
            images=as_tensor(self.images),
            labels=torch.from_numpy(self.labels),
            domain=dominant(self.spans),
            index=self.index,
            spans=self.spans,
        )


def dominant(spans: tuple[Span, ...]) -> Domain:
    """The domain of most images; on a tie the one that came first.

    >>> fog, snow = Domain(("fog", 5)), Domain(("snow", 5))
    >>> str(dominant((Span(fog, 0, 20), Span(snow, 0, 44)))), str(dominant((Span(fog, 0, 32), Span(snow, 0, 32))))
    ('snow 5', 'fog 5')
    """
    images: dict[Domain, int] = {}
    for span in spans:
        images[span.domain] = images.get(span.domain, 0) + span.images
    return max(images, key=images.__getitem__)
