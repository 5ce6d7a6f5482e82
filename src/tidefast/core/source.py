"""Source data: the images, and labels where there are any, that some methods learn from before the stream starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from tidefast.core.network import Network

_BATCH = 64


class SourceData:
    """Batches of source images for one network, as often as a method asks for them.

    given: a loader of images or of (images, labels, ...), a tensor of images, or a pair of tensors. What can be gone
    over only once, such as a generator, serves methods that need one pass.
    reader: who asks, for messages.

    >>> given = torch.rand(100, 4), torch.zeros(100, dtype=torch.long)
    >>> data = SourceData(Network(torch.nn.Linear(4, 2)), given, "RMT")
    >>> [len(images) for images in data], [len(labels) for _, labels in data.labelled()]
    ([64, 36], [64, 36])
    """

    def __init__(self, network: Network, given: Iterable[Any] | Tensor, reader: str) -> None:
        self._network, self._reader = network, reader
        pair = isinstance(given, (tuple, list)) and len(given) == 2 and _are_labels(given[1])
        self._given = given
        if isinstance(given, Tensor):
            self._given = torch.split(given, _BATCH)
        elif pair:
            images, labels = given
            if len(images) != len(labels):
                raise ValueError(f"source= has {len(images)} images but {len(labels)} labels")
            self._given = list(zip(torch.split(images, _BATCH), torch.split(labels, _BATCH), strict=True))
        self._spent = False

    def __iter__(self) -> Iterator[Tensor]:
        """Image batches, one pass."""
        return (images for images, _ in self._batches())

    def labelled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(images, labels), one pass."""
        for images, labels in self._batches():
            if labels is None:
                raise ValueError(
                    f"{self._reader} needs labelled source data: source= must yield (images, labels), or be a pair of "
                    "tensors, with one integer label for each image; on the command line --source takes a folder with "
                    "a folder for each class, or 'bundled-train'"
                )
            yield images, labels

    def endless(self, *, labelled: bool = False) -> Iterator[tuple[Tensor, Tensor | None]]:
        """(images, labels), pass after pass; without `labelled` the labels may be None."""
        while True:
            yield from self.labelled() if labelled else self._batches()

    def first(self, count: int) -> tuple[Tensor, Tensor]:
        """The first `count` images and labels (fewer where there are not so many), as two tensors."""
        images, labels, seen = [], [], 0
        for batch, of_batch in self.labelled():
            images.append(batch)
            labels.append(of_batch)
            seen += len(batch)
            if seen >= count:
                break
        return torch.cat(images)[:count], torch.cat(labels)[:count]

    def _batches(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        passes = iter(self._given)
        if passes is self._given:
            if self._spent:
                raise ValueError(
                    f"{self._reader} goes over the source data several times, and source= can be gone over only once: "
                    "pass a loader, a list of batches, or tensors"
                )
            self._spent = True
        network, empty = self._network, True
        for item in passes:
            images, labels = (item[0], item[1] if len(item) > 1 else None) if _is_pair(item) else (item, None)
            if not isinstance(images, Tensor) or not images.is_floating_point():
                got = images.dtype if isinstance(images, Tensor) else type(images).__name__
                raise TypeError(f"source= must yield batches of float images (alone or first in a tuple), got {got}")
            if len(images) > 1 or (len(images) and not network.statistics.needs_batch):
                empty = False
                yield images.to(device=network.device, dtype=network.dtype), self._checked(labels, images)
        if empty:
            raise ValueError("source= yielded no images")

    def _checked(self, labels: Any, images: Tensor) -> Tensor | None:
        """The labels on the network's device, or None where they are no labels."""
        if not _are_labels(labels) or len(labels) != len(images):
            return None
        moved: Tensor = labels.to(device=self._network.device, dtype=torch.int64)
        return moved


def _is_pair(item: Any) -> bool:
    return isinstance(item, (tuple, list)) and len(item) > 0


def _are_labels(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 1 and not part.is_floating_point()
