"""CCC from its published files: any batch at any time, in the true order or in that of several loader workers."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import numpy.typing as npt

from tidefast.core.constraints import Count
from tidefast.core.validation import require_choice, require_count
from tidefast.datasets.errors import DatasetError
from tidefast.streams.batch import RawBatch, Span
from tidefast.streams.batching import RAGGED, Ragged
from tidefast.streams.ccc_recipes import CCC1kRecipe, CCCMiniRecipe, CCCRecipe
from tidefast.streams.images import Data
from tidefast.streams.jpeg import decode
from tidefast.streams.named import Recipe, registry
from tidefast.streams.seekable import Seekable
from tidefast.streams.settings import StreamSettings
from tidefast.streams.shard_files import ShardIndex, folder_name, index_of, shard_name

ShardPosition = tuple[int, int]
"""Of a sample: its shard, and its number there."""

_REMEMBERED = 16


class Shards(Seekable):
    """The samples of shards, in batches; each carries its true domain.

    `interleave`: None for the true order, in which a batch may cross from one shard to the next. A number W for what
    a PyTorch loader with W workers makes of the shards: worker w reads shards w, w + W, ... on end, and one batch
    is taken of each worker in turn, of those that have any left.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        batch: int = 64,
        steps: int | None = None,
        ragged: Ragged = "keep",
        interleave: int | None = None,
        name: str = "",
    ) -> None:
        require_count("batch", batch)
        require_choice("ragged", ragged, RAGGED)
        if interleave is not None:
            require_count("interleave", interleave)
        if not paths:
            raise DatasetError("a stream of shards needs at least one, got none")
        self.paths = tuple(Path(path) for path in paths)
        self.batch, self.interleave, self.name = batch, interleave, name
        # All of them would be hundreds of megabytes for a whole stream.
        self._recall = functools.lru_cache(_REMEMBERED)(index_of)
        self._sizes: list[int] = []
        classes: dict[int, str] = {}
        for index in map(index_of, self.paths):
            self._sizes.append(len(index))
            classes.update(index.classes)
        self._classes = tuple(classes.get(label, str(label)) for label in range(max(classes) + 1))
        workers = 1 if interleave is None else interleave
        self._workers = [_ShardReader(range(w, len(paths), workers), self._sizes) for w in range(workers)]
        self._batches = [
            reader.images // batch if ragged == "drop" else -(-reader.images // batch) for reader in self._workers
        ]
        available = sum(self._batches)
        if steps is not None:
            require_count("steps", steps)
            if steps > available:
                raise ValueError(f"steps={steps} is more than the {available} batches of {batch} that the shards hold")
        self._steps = available if steps is None else steps
        if self._steps == 0:
            raise ValueError(f"no batch of {batch} fits into {sum(self._sizes)} images: use ragged='keep'")

    def __repr__(self) -> str:
        order = "true order" if self.interleave is None else f"interleaved as by {self.interleave} workers"
        return f"Shards({len(self)} steps of {self.batch}, {len(self.paths)} shards, {order})"

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    def __len__(self) -> int:
        return self._steps

    def places(self, k: SupportsIndex) -> list[ShardPosition]:
        """Shard and number of each sample of batch `k`."""
        worker, turn = _turn(self._batches, self._step(k))
        return self._workers[worker].places(turn * self.batch, (turn + 1) * self.batch)

    def spans(self, k: SupportsIndex) -> tuple[Span, ...]:
        return self._spans(self.places(k))

    def pixels(self, k: SupportsIndex) -> RawBatch:
        places = self.places(k)
        labels = np.array([self._index(shard).labels[number] for shard, number in places], np.int64)
        images = [
            image
            for shard, group in itertools.groupby(places, key=lambda place: place[0])
            for image in self._images(shard, [number for _, number in group])
        ]
        if len({image.shape for image in images}) > 1:
            raise DatasetError(f"the images of batch {self._step(k)} differ in size; shards: {self.paths[0].parent}")
        return RawBatch(np.stack(images), labels, self._step(k), self._spans(places))

    def _spans(self, places: Sequence[ShardPosition]) -> tuple[Span, ...]:
        domains = (self._index(shard).domain(number) for shard, number in places)
        return tuple(Span(domain, 0, len(list(group))) for domain, group in itertools.groupby(domains))

    def _images(self, shard: int, numbers: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
        index, path = self._index(shard), self.paths[shard]
        images = []
        with open(path, "rb") as file:
            for number in numbers:
                file.seek(int(index.offsets[number]))
                content = file.read(int(index.sizes[number]))
                try:
                    images.append(decode(content))
                except (OSError, SyntaxError, ValueError) as error:
                    raise DatasetError(f"{path}: the image of sample {number} is damaged: {error}") from error
        return images

    def _index(self, shard: int) -> ShardIndex:
        return self._recall(self.paths[shard])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_recall"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._recall = functools.lru_cache(_REMEMBERED)(index_of)


@dataclass(frozen=True)
class _ShardReader:
    """Shards read on end, as one loader worker does."""

    shards: range
    sizes: list[int]

    @property
    def images(self) -> int:
        return sum(self.sizes[shard] for shard in self.shards)

    def places(self, first: int, stop: int) -> list[ShardPosition]:
        """Samples `first` to `stop`, or to the end."""
        positions: list[ShardPosition] = []
        begin = 0
        for shard in self.shards:
            end = begin + self.sizes[shard]
            positions += ((shard, position - begin) for position in range(max(first, begin), min(stop, end)))
            begin = end
        return positions


def _turn(batches: Sequence[int], k: int) -> tuple[int, int]:
    """The worker that delivers batch `k`, and which of its own it is, when those with any left take turns.

    >>> [_turn([3, 1, 2], k) for k in range(6)]
    [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2)]
    """
    low, high = 0, max(batches)
    while high - low > 1:  # the last turn before which no more than k batches were delivered
        middle = (low + high) // 2
        low, high = (middle, high) if sum(min(count, middle) for count in batches) <= k else (low, middle)
    before = sum(min(count, low) for count in batches)
    active = [worker for worker, count in enumerate(batches) if count > low]
    return active[k - before], low


def find_shards(folder: str | os.PathLike[str]) -> list[Path]:
    """The shards of a folder in their order; the first number that is missing is the end of the stream."""
    paths = (Path(folder, shard_name(number)) for number in itertools.count())
    return list(itertools.takewhile(Path.is_file, paths))


@registry.register("ccc-shards")
@dataclass(frozen=True)
class CCCShardsRecipe(Recipe):
    """CCC from published or generated shards.

    `path`: the folder of the shards; or, with `level`, the folder that holds the folders of the streams, of which the
    level, `speed` and `seed` pick one; without `speed` it is 1000, or the only one that is there, and with the default
    seed, of which there are none published, the only one of any seed. `interleave`: None
    for the true order; 4 for the order in which four loader workers, the default of many evaluations, deliver it.
    """

    path: str | os.PathLike[str] = ""
    level: str | float | None = None
    speed: int | str | None = None
    interleave: Count | None = None

    needs: ClassVar[str] = (
        "path: a folder with serial_00000.tar, serial_00001.tar, ..., or with folders such as "
        "baseline_0_transition+speed_1000_seed_43 that hold them, as published or made by `tidefast generate`"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not os.fspath(self.path):
            raise ValueError(f"stream {self.name!r} needs {self.needs}")

    def stream(self, data: Data | None, settings: StreamSettings) -> Shards:
        for name, given in (("data", data), ("order", settings.order), ("scale", settings.scale)):
            if given is not None:
                raise ValueError(f"stream {self.name!r} takes no {name}: its images and their order are in the shards")
        return Shards(
            self._shards(settings.seed),
            batch=settings.batch,
            steps=settings.steps,
            ragged=settings.ragged,
            interleave=self.interleave,
            name=self.name,
        )

    def _shards(self, seed: int) -> list[Path]:
        root = Path(self.path)
        folders = [root] if self.level is None else self._folders(root, seed)
        if len(folders) > 1:
            raise DatasetError(
                f"{root} holds several streams of the level {self.level!r} "
                f"({', '.join(folder.name for folder in folders)}): give seed= and speed=, or one of them as path="
            )
        for folder in folders:
            if shards := find_shards(folder):
                return shards
        there = sorted(folder.name for folder in root.glob("baseline_*")) if root.is_dir() else []
        raise DatasetError(
            f"there is no {shard_name(0)} in {folders[0] if folders else root}"
            + (f" of the level {self.level!r} with seed {seed}" if self.level is not None else "")
            + (f", but {', '.join(there)}: give its level and seed, or it as path=" if there else "")
            + f"; {self.needs}"
        )

    def _folders(self, root: Path, seed: int) -> list[Path]:
        """Those of the level and the seed, and of the speed where it is given; of the default seed, or of any."""
        assert self.level is not None
        # A level aims at one accuracy on ImageNet and at others on the bundled images.
        targets = {kind(self.level).aim for kind in (CCCRecipe, CCCMiniRecipe, CCC1kRecipe)}
        # The generator writes 0.0 where the hosted copy has 0.
        spellings = sorted({text for target in targets for text in (f"{target:g}", f"{float(target)}")})
        seeds = (str(seed), "*") if seed == StreamSettings.seed else (str(seed),)
        speeds = ("1000", "*") if self.speed is None else (str(self.speed),)
        for own, speed in itertools.product(seeds, speeds):
            found = [folder for text in spellings for folder in sorted(root.glob(folder_name(text, speed, own)))]
            if found:
                return found
        return []
