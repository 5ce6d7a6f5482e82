"""CCC by name: the benchmark itself, and a small one that needs nothing but this package."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Interval

from tidefast.core.constraints import Count, Percent
from tidefast.core.validation import require_choice, require_count, require_number
from tidefast.datasets import LabelledImages, photos
from tidefast.streams.ccc import LEVELS, PathCell, endless_chain, noise_types, walk
from tidefast.streams.ccc_images import CCCImages
from tidefast.streams.images import Data, labelled_images
from tidefast.streams.jpeg import QUALITY
from tidefast.streams.matrix import Matrix, matrix_of
from tidefast.streams.named import Recipe, registry
from tidefast.streams.rendering import Rendering
from tidefast.streams.schedule import Schedule, Stretch

Redraw = Literal["pair", "cell"]

Quality = Annotated[int, Interval(ge=1, le=100)]
"""Of JPEG."""
_PURPOSE = zlib.crc32(b"speed")  # keeps these draws apart from others that start with the same seed


@registry.register("ccc")
@dataclass(frozen=True)
class CCCRecipe(Recipe):
    """Continually changing corruptions, made on the fly: one noise fades into the next at a chosen accuracy.

    `level`: "easy", "medium", "hard", a target accuracy in percent, or a list of types. `target`: of the path, by
    default that of the level (a list has 0). `speed`: images for each cell of a path (the published streams have
    1000, 2000 and 5000), several to draw from, or "random" for those three; `redraw` says whether for each "pair" of
    noises or for each "cell". `matrix`: the accuracies that paths are searched in, a file of `tidefast calibrate`, the
    published pickle, "bundled" or "synthetic"; only target 0 does without, where every falling matrix has the same
    path. `crop`: flip and random resized crop. `jpeg`: quality, or None. `total`: images, unless `steps` is given.
    The seeds of the published streams are 43, 44 and 45.

    >>> recipe = CCCRecipe(level="hard", speed=2000)
    >>> schedule = recipe.schedule(seed=43, size=50_000, batch=64, steps=None)
    >>> schedule.images, str(schedule.at(0)), str(schedule.at(21 * 2000))
    (7500000, 'gaussian_noise 5', 'gaussian_noise 4.75 + impulse_noise 5')
    """

    level: str | float | Sequence[str] = "hard"
    speed: Count | Literal["random"] | Sequence[int] = 1000
    redraw: Redraw = "pair"
    target: Percent | None = None
    matrix: str | os.PathLike[str] | Matrix | None = None
    crop: bool = True
    jpeg: Quality | None = QUALITY
    total: Count = 7_500_000

    needs: ClassVar[str] = (
        "data: the 50 000 validation images of ImageNet in one folder for each class, as "
        "tidefast.datasets.folder(root, verify=False); matrix: accuracies measured by `tidefast calibrate`, or the "
        "published ccc_accuracy_matrix.pickle (the hard level does without)"
    )
    targets: ClassVar[dict[str, float]] = {"easy": 40.0, "medium": 20.0, "hard": 0.0}
    random_speeds: ClassVar[tuple[int, ...]] = (1000, 2000, 5000)

    def __post_init__(self) -> None:
        if type(self.crop) is int:
            raise TypeError(f"crop is True or False, got {self.crop}: the side of the images is size={self.crop}")
        super().__post_init__()
        noise_types(self._chain_level)
        for speed in self.speeds:
            require_count("speed", speed)

    @property
    def speeds(self) -> tuple[int, ...]:
        """The numbers of images for one cell that are drawn from."""
        if isinstance(self.speed, str):
            require_choice("speed", self.speed, ("random",))
            return self.random_speeds
        if isinstance(self.speed, (int, float)):
            return (self.speed,)
        if not self.speed:
            raise ValueError("speed must be a number of images, several of them or 'random', got none")
        return tuple(self.speed)

    @property
    def aim(self) -> float:
        """The accuracy in percent that paths aim at."""
        if self.target is not None:
            return self.target
        if isinstance(self.level, str):
            return self.targets[self.level.lower()]
        return float(self.level) if isinstance(self.level, (int, float)) else 0.0

    @property
    def types(self) -> tuple[str, ...]:
        """The types that the chain is drawn from."""
        return noise_types(self._chain_level)

    @property
    def _chain_level(self) -> str | tuple[str, ...]:
        """A number takes the types of the hardest level whose target it reaches."""
        if isinstance(self.level, str):
            return self.level
        if isinstance(self.level, (int, float)):
            require_number("level", self.level, 0.0, 100.0)
            return next((name for name in LEVELS if self.level >= self.targets[name]), "hard")
        return tuple(self.level)

    def source(self, data: Data | None) -> tuple[LabelledImages, Rendering]:
        if data is None and self.needs:
            raise ValueError(f"stream {self.name!r} needs {self.needs}; 'ccc-mini' needs nothing")
        return self.clean_images(data), CCCImages(crop=self.crop, jpeg=self.jpeg)

    def paths(self) -> dict[tuple[str, str], list[PathCell]]:
        """The path from each type to each other one."""
        matrix = self._matrix()
        return {pair: matrix.path(*pair, self.aim) for pair in matrix.pairs(self.types)}

    def stretches(self, seed: int) -> Iterator[Stretch]:
        """The cells of the paths from noise to noise, without end."""
        paths = self.paths()
        draws = np.random.Generator(np.random.Philox(key=np.array([seed, _PURPOSE], np.uint64)))
        for first, second in itertools.pairwise(endless_chain(self._chain_level, seed)):
            path = paths[first, second]
            drawn = draws.integers(len(self.speeds), size=1 if self.redraw == "pair" else len(path))
            speeds = itertools.cycle(self.speeds[number] for number in drawn)
            yield from walk(first, second, path, speeds).stretches

    def schedule(self, *, seed: int, size: int, batch: int, steps: int | None) -> Schedule:
        images = self.total if steps is None else steps * batch
        return Schedule(tuple(until(self.stretches(seed), images))).take(images)

    def _matrix(self) -> Matrix:
        if self.matrix == "synthetic" or (self.matrix is None and self.aim == 0):
            return Matrix.synthetic(tuple(dict.fromkeys(self.types)))
        if self.matrix is not None:
            return matrix_of(self.matrix)
        raise ValueError(
            f"a path with a mean accuracy of {self.aim:g} % needs a matrix of accuracies: give matrix= (--matrix) the "
            "file that `tidefast calibrate` measured, the published pickle, or 'synthetic' for a stream that is not "
            "calibrated"
        )


@registry.register("ccc-mini")
@dataclass(frozen=True)
class CCCMiniRecipe(CCCRecipe):
    """`ccc` at 32 pixels, calibrated for the bundled residual network on the bundled images.

    No crop and no JPEG; a cell lasts five batches of 32, so that 3000 of them see 15 walks of the hard level.

    >>> from tidefast.streams import make
    >>> stream = make("ccc-mini", seed=43, steps=3000, batch=32)
    >>> [str(stream.spans(k)[0].domain) for k in (0, 60, 204)]
    ['gaussian_noise 5', 'gaussian_noise 5 + impulse_noise 3', 'impulse_noise 5']
    """

    speed: Count | Literal["random"] | Sequence[int] = 160
    matrix: str | os.PathLike[str] | Matrix | None = "bundled"
    crop: bool = False
    jpeg: Quality | None = None
    total: Count = 96_000

    needs: ClassVar[str] = ""
    targets: ClassVar[dict[str, float]] = {"easy": 60.0, "medium": 45.0, "hard": 0.0}
    random_speeds: ClassVar[tuple[int, ...]] = (80, 160, 400)


@registry.register("ccc-1k")
@dataclass(frozen=True)
class CCC1kRecipe(CCCMiniRecipe):
    """`ccc` at 128 pixels and with a thousand classes, calibrated for bundled-lite0 on the bundled photos.

    >>> from tidefast.streams import make
    >>> stream = make("ccc-1k", level="hard", seed=43, steps=2000, part="stream")
    >>> stream
    Stream('ccc-1k', 2000 steps of 32, 800 images, seed 43)
    """

    matrix: str | os.PathLike[str] | Matrix | None = "bundled-1k"
    jpeg: Quality | None = QUALITY

    targets: ClassVar[dict[str, float]] = {"easy": 40.0, "medium": 25.0, "hard": 10.0}
    default_batch: ClassVar[int] = 32

    def clean_images(self, data: Data | None) -> LabelledImages:
        return photos() if data is None else labelled_images(data)


def until(stretches: Iterable[Stretch], images: int) -> Iterator[Stretch]:
    """Whole stretches until they hold at least so many images.

    >>> from tidefast.streams import Domain
    >>> [stretch.images for stretch in until(itertools.repeat(Stretch(Domain(), 2000)), 5000)]
    [2000, 2000, 2000]
    """
    held = 0
    for stretch in stretches:
        yield stretch
        held += stretch.images
        if held >= images:
            return
