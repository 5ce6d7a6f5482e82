"""Write a CCC stream as shards: whole ones only, in any number of processes, always the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from tidefast.core.files import LOCK, locked, write_atomically, written_atomically
from tidefast.core.validation import require_choice, require_count
from tidefast.corruptions.severity import Scale
from tidefast.datasets import ImageFolder, LabelledImages
from tidefast.datasets.picture import require_pillow
from tidefast.errors import FolderError
from tidefast.streams import jpeg
from tidefast.streams.ccc_images import CCCImages
from tidefast.streams.ccc_recipes import CCCRecipe
from tidefast.streams.images import Data
from tidefast.streams.pool import mapped
from tidefast.streams.schedule import Schedule, Stretch
from tidefast.streams.shard_files import Info, ShardWriter, folder_name, index_of, shard_name
from tidefast.streams.stream import Stream

ImageFormat = Literal["jpg", "png"]
IMAGE_FORMATS: tuple[ImageFormat, ...] = get_args(ImageFormat)

IMAGES_PER_SHARD = 25_000

_AT_ONCE = 50  # images in memory before they are files
_ABOUT = "about.json"


@dataclass(frozen=True)
class ShardPlan:
    """Which stretches of the schedule a shard holds: `first` to `stop`, so many `images`."""

    number: int
    first: int
    stop: int
    images: int


def plan_shards(stretches: Iterable[Stretch], total: int, images_per_shard: int = IMAGES_PER_SHARD) -> list[ShardPlan]:
    """Whole stretches until a shard holds enough images, whole shards until there are `total`.

    >>> import itertools
    >>> from tidefast.streams import Domain
    >>> plan = plan_shards(itertools.repeat(Stretch(Domain(), 2000)), total=7_500_000)
    >>> len(plan), plan[0].stop, plan[0].images, sum(shard.images for shard in plan)
    (289, 13, 26000, 7514000)
    """
    require_count("total", total)
    require_count("images_per_shard", images_per_shard)
    plans: list[ShardPlan] = []
    first = held = done = 0
    for number, stretch in enumerate(stretches):
        held += stretch.images
        if held >= min(images_per_shard, total):
            plans.append(ShardPlan(len(plans), first, number + 1, held))
            done += held
            first, held = number + 1, 0
            if done >= total:
                break
    return plans


def generate(
    recipe: CCCRecipe,
    data: Data | None,
    root: str | os.PathLike[str],
    *,
    seed: int,
    images_per_shard: int = IMAGES_PER_SHARD,
    kind: ImageFormat | None = None,
    scale: Scale | None = None,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the stream of a recipe under `root`, in a folder named as the published ones; returns that folder.

    `kind`: "jpg" at the recipe's quality (85 if it has none), as published, or "png", without loss; by default what the
    recipe has. Finished shards are never made again, so a killed call is resumed by the same call. `progress` is
    called with the shards that are done and those there are.
    """
    require_count("workers", workers, low=0)
    kind = ("png" if recipe.jpeg is None else "jpg") if kind is None else kind
    require_choice("kind", kind, IMAGE_FORMATS)
    images, _ = recipe.source(data)
    plans, stretches = _planned(recipe, seed, images_per_shard)
    stream = Stream(
        images, Schedule(stretches), seed=seed, scale=scale, rendering=CCCImages(crop=recipe.crop, jpeg=None)
    )
    press = _Press(stream, kind, recipe.jpeg or jpeg.QUALITY, Path(root, _folder_name(recipe, seed)))
    press.folder.mkdir(parents=True, exist_ok=True)
    with locked(press.folder / LOCK):
        _claim(press.folder, _settings(recipe, press, images_per_shard))
        missing = [plan for plan in plans if not (press.folder / shard_name(plan.number)).exists()]
        done = len(plans) - len(missing)
        report = progress or (lambda done, total: None)
        report(done, len(plans))
        for _ in mapped(_write_shard, press, missing, workers):
            done += 1
            report(done, len(plans))
    return press.folder


@dataclass(frozen=True)
class _Press:
    """What a process needs to make any shard."""

    stream: Stream
    kind: ImageFormat
    quality: int
    folder: Path

    def encoded(self, image: npt.NDArray[np.uint8]) -> bytes:
        if self.kind == "jpg":
            return jpeg.encode(image, self.quality)
        content = io.BytesIO()
        require_pillow().fromarray(image).save(content, "PNG")
        return content.getvalue()


def _write_shard(press: _Press, plan: ShardPlan) -> int:
    path = press.folder / shard_name(plan.number)
    with written_atomically(path) as file:
        shard = ShardWriter(file)
        for number in range(plan.first, plan.stop):
            for info, image, label in _samples(press.stream, number):
                shard.add(info, press.encoded(image), press.kind, label)
        shard.close()
    index_of(path)  # so that the first reader need not wait for it
    return plan.number


def _samples(stream: Stream, number: int) -> Iterator[tuple[Info, npt.NDArray[np.uint8], int]]:
    """The samples of one stretch: the very images that the stream has there."""
    begin, domain = stream.schedule.start(number), stream.schedule.stretches[number].domain
    end = int(stream.schedule.ends[number])
    for first in range(begin, end, _AT_ONCE):
        stop = min(first + _AT_ONCE, end)
        places = stream.passes.images(number, begin, first, stop)
        images = stream.rendering.render(
            stream.data, places, domain, seed=stream.seed, indices=np.arange(first, stop), scale=stream.scale
        )
        for place, image in zip(places, images, strict=True):
            label = int(stream.data.labels[place])
            yield Info(*_origin(stream.data, int(place), label), domain), image, label


def _origin(data: LabelledImages, place: int, label: int) -> tuple[str, str]:
    """Folder and file name of an image, or its class and place where there is no file."""
    if isinstance(data, ImageFolder):
        return data.classes[label], data.paths[place].name
    return data.classes[label], str(place)


def _planned(recipe: CCCRecipe, seed: int, images_per_shard: int) -> tuple[list[ShardPlan], tuple[Stretch, ...]]:
    taken: list[Stretch] = []

    def remembered() -> Iterator[Stretch]:
        for stretch in recipe.stretches(seed):
            taken.append(stretch)
            yield stretch

    return plan_shards(remembered(), recipe.total, images_per_shard), tuple(taken)


def _folder_name(recipe: CCCRecipe, seed: int) -> str:
    speed = recipe.speed if isinstance(recipe.speed, (int, str)) else "-".join(map(str, recipe.speeds))
    return folder_name(recipe.aim, speed, seed)


def _settings(recipe: CCCRecipe, press: _Press, images_per_shard: int) -> dict[str, Any]:
    """What the bytes of the shards depend on; more images in total only add shards."""
    return {
        "stream": recipe.name,
        "types": list(recipe.types),
        "target": recipe.aim,
        "speeds": list(recipe.speeds),
        "redraw": recipe.redraw,
        "crop": recipe.crop,
        "kind": press.kind,
        "quality": press.quality if press.kind == "jpg" else None,
        "scale": press.stream.scale,
        "seed": press.stream.seed,
        "images per shard": min(images_per_shard, recipe.total),
        "matrix": hashlib.blake2b(repr(recipe.paths()).encode(), digest_size=16).hexdigest(),
        "data": _digest_of_data(press.stream.data),
    }


def _digest_of_data(data: LabelledImages) -> str:
    """Of the names of files, or of the images where there are none, and of the labels."""
    digest = hashlib.blake2b(data.labels.astype("<i8").tobytes(), digest_size=16)
    if isinstance(data, ImageFolder):
        for path in data.paths:
            digest.update(f"{path.parent.name}/{path.name}\n".encode())
    else:
        digest.update(np.ascontiguousarray(data[np.arange(len(data))].images).data)
    return digest.hexdigest()


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """Make sure that what is in the folder already is of the same stream, and clear away what a kill left behind."""
    about = folder / _ABOUT
    if about.exists():
        try:
            before = json.loads(about.read_bytes())
        except ValueError as error:
            raise FolderError(f"{about} is damaged ({error}): delete {folder}, or write elsewhere") from error
        other = [name for name in settings if before.get(name) != settings[name]]
        if other:
            raise FolderError(
                f"{folder} holds shards of another stream (other {', '.join(other)}): delete it, or write elsewhere"
            )
    elif any(folder.glob("serial_*.tar")):
        raise FolderError(f"{folder} holds shards that were not made here (no {_ABOUT}): write elsewhere")
    else:
        write_atomically(about, json.dumps(settings, indent=2).encode())
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)
