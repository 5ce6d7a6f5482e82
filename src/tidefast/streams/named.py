"""Streams by name."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tidefast import datasets
from tidefast.core.constraints import Constrained, Count, Percent, constraints_of
from tidefast.core.registry import Registry
from tidefast.core.specification import Given, Specification, called, imported
from tidefast.corruptions.severity import Scale
from tidefast.datasets import ClassesGiven, ImageFolder, ImageSet, LabelledImages, Subset
from tidefast.datasets.parts import PartName
from tidefast.errors import SpecificationError
from tidefast.streams.batching import Ragged
from tidefast.streams.ccc import chained_walks, find_path, noise_chain, noise_types, synthetic_matrix
from tidefast.streams.domain import Domain
from tidefast.streams.images import Data, labelled_images
from tidefast.streams.order import Order, orders
from tidefast.streams.passes import Renewal
from tidefast.streams.rendering import Rendering
from tidefast.streams.schedule import Schedule, hold, join
from tidefast.streams.seekable import Seekable
from tidefast.streams.settings import StreamSettings
from tidefast.streams.stream import Noise, Stream


@dataclass(frozen=True)
class Recipe(Constrained):
    """A named kind of stream: its dataclass fields are the options that `make` takes for it.

    It has a `schedule`, or makes its `stream` itself. Another package adds one with `@registry.register("name")` or an
    entry point in the group `tidefast.streams`.
    """

    name: ClassVar[str]
    renewal: ClassVar[Renewal] = "stretch"
    noise: ClassVar[Noise] = "fresh"
    cross: ClassVar[bool] = True
    rendering: ClassVar[Rendering | None] = None
    default_batch: ClassVar[int] = 64
    needs: ClassVar[str] = ""
    """Which files a run needs and how they are laid out; empty when the bundled images do."""

    def clean_images(self, data: Data | None) -> LabelledImages:
        """The clean images that a caller meant."""
        return labelled_images(data)

    def source(self, data: Data | None) -> tuple[LabelledImages, Rendering | None]:
        """The images that the stream draws from, and how they are rendered; None: by the corruptions of the domain."""
        return self.clean_images(data), self.rendering

    def label_order(self) -> Order | None:
        """The order of one pass when the caller gives none; None: shuffled."""
        return None

    def stream(self, data: Data | None, settings: StreamSettings) -> Seekable:
        """The stream itself; a recipe whose images are stored somewhere makes its own."""
        images, rendering = self.source(data)
        return Stream(
            images,
            self.schedule(seed=settings.seed, size=len(images), batch=settings.batch, steps=settings.steps),
            batch=settings.batch,
            seed=settings.seed,
            steps=settings.steps,
            order=settings.order,
            renewal=self.renewal,
            noise=self.noise,
            cross=self.cross,
            ragged=settings.ragged,
            scale=settings.scale,
            rendering=rendering,
            name=self.name,
        )

    def schedule(self, *, seed: int, size: int, batch: int, steps: int | None) -> Schedule:
        """A schedule for a set of `size` images that lasts `steps` batches or more; None: as long as it sees fit."""
        raise NotImplementedError(f"{type(self).__name__} has neither a schedule nor a stream of its own")


registry: Registry[Recipe] = Registry("stream", Recipe)

_OF_FILES = ("size", "resize", "classes")
_GENERAL = ("data", "part", *_OF_FILES, "seed", "steps", "batch", "order", "ragged", "scale")


def make(
    name: Given,
    data: Data | str | os.PathLike[str] | None = None,
    *,
    part: PartName | None = None,
    size: int | None = None,
    resize: int | None = None,
    classes: ClassesGiven | None = None,
    seed: int | None = None,
    steps: int | None = None,
    batch: int | None = None,
    order: Order | Given | None = None,
    ragged: Ragged | None = None,
    scale: Scale | None = None,
    **options: Any,
) -> Seekable:
    """The stream of that name, on the bundled images or on `data`; `options` are the fields of its recipe.

    They may stand in the name, as in "ccc-mini:level=hard", and so may all else. `module:function` is called with
    `seed`, `steps`, `batch` and whatever else is given, and returns the stream. `data` may also be a name or a path
    that `tidefast.datasets.open` takes, which explains `size`, `resize` and `classes`. `part`: "stream" or "held" of
    it, which have no image in common.
    `seed` defaults to 0, `batch` to that of the protocol, `ragged` to "keep".

    >>> stream = make("drift", seed=43, steps=2000)
    >>> stream
    Stream('drift', 2000 steps of 64, 3000 images, seed 43)
    >>> str(stream[0].domain), str(stream[20].domain)
    ('gaussian_noise 5', 'gaussian_noise 5 + impulse_noise 1.25')
    """
    values = (data, part, size, resize, classes, seed, steps, batch, order, ragged, scale)
    asked = dict(zip(_GENERAL, values, strict=True))
    given = {key: value for key, value in asked.items() if value is not None}
    specification = Specification.parse(name).but(**options, **given)
    what = f"stream {specification.name!r}"
    stream: object = called(what, _bound(specification))
    if not isinstance(stream, Seekable):
        raise SpecificationError(f"{what} must give a tidefast.streams.Seekable, got {type(stream).__name__}")
    return stream


def check(name: Given) -> None:
    """Raise what `make` would raise of unknown names and options; nothing is made."""
    _bound(Specification.parse(name))


def _bound(specification: Specification) -> Callable[[], object]:
    """What makes the stream: a recipe by its class, or a function that makes it of all that was asked."""
    if specification.is_address and not _is_recipe(specification.name):
        asked = specification.but(**{"seed": 0, "steps": None, "batch": None, **specification.options})
        return registry.bound(asked, also=" (a stream is made with seed, steps and batch)")
    general = {key: value for key, value in specification.options.items() if key in _GENERAL}
    also = f", and for every stream: {', '.join(_GENERAL)}"
    own = {key: value for key, value in specification.options.items() if key not in _GENERAL}
    bound = registry.bound(Specification(specification.name, own), also=also)
    if "classes" in general and isinstance(bound.func, type) and "classes" in constraints_of(bound.func):
        bound = functools.partial(bound, classes=general["classes"])  # of stored images, which it counts
    return functools.partial(_of_recipe, bound, general)


def _is_recipe(address: str) -> bool:
    try:
        target = imported(address)
    except SpecificationError:
        return False  # which is said when it is looked for in earnest
    return isinstance(target, type) and issubclass(target, Recipe)


def _of_recipe(make_recipe: Callable[[], Recipe], general: dict[str, Any]) -> Seekable:
    recipe, data, order = make_recipe(), general.get("data"), general.get("order")
    settings = StreamSettings(
        batch=recipe.default_batch if general.get("batch") is None else general["batch"],
        seed=general.get("seed", 0),
        steps=general.get("steps"),
        order=recipe.label_order() if order is None else orders.make(order),
        ragged=general.get("ragged", "keep"),
        scale=general.get("scale"),
    )
    images = _opened(recipe, data, {key: general[key] for key in _OF_FILES if key in general})
    if "part" in general:
        if images is None and recipe.needs:
            raise ValueError(f"part={general['part']!r} is of images that stream {recipe.name!r} is given as data=")
        images = datasets.part_of(recipe.clean_images(images), general["part"])
    return recipe.stream(images, settings)


def _opened(recipe: Recipe, data: Data | str | os.PathLike[str] | None, asked: dict[str, Any]) -> Data | None:
    if isinstance(data, (str, os.PathLike)):
        return datasets.open(data, **asked)
    if "size" in asked or "resize" in asked:
        raise ValueError(f"size= and resize= are for image files: give stream {recipe.name!r} their folder as data=")
    if "classes" not in asked or data is None:
        return data
    images = labelled_images(data)
    if not isinstance(images, (ImageSet, ImageFolder, Subset)):
        raise TypeError(f"classes= takes a folder, an ImageSet or a pair of arrays as data, got {type(data).__name__}")
    return datasets.matched(images, asked["classes"])


@registry.register("clean")
@dataclass(frozen=True)
class Clean(Recipe):
    """The images as they are; without `steps` one pass over them.

    >>> len(make("clean")), str(make("clean")[0].domain)
    (47, 'clean')
    """

    renewal: ClassVar[Renewal] = "stream"

    def schedule(self, *, seed: int, size: int, batch: int, steps: int | None) -> Schedule:
        return hold(Domain(), size if steps is None else steps * batch)


@registry.register("clean-1k")
@dataclass(frozen=True)
class Clean1k(Clean):
    """A thousand photos with ImageNet's labels as they are, 128 pixels; without `steps` one pass over them.

    >>> len(make("clean-1k")), len(make("clean-1k", part="held"))
    (32, 7)
    """

    default_batch: ClassVar[int] = 32

    def clean_images(self, data: Data | None) -> LabelledImages:
        return datasets.photos() if data is None else labelled_images(data)


@registry.register("drift")
@dataclass(frozen=True)
class Drift(Recipe):
    """A chain of noises that fade into each other, as in CCC: the old one falls while, or after, the new one rises.

    `level`: the types the chain is drawn from (see `noise_types`). `images_per_cell`: CCC's speed; more is slower.
    `target`: the accuracy in percent that `find_path` aims at on `synthetic_matrix`; at 0, as in CCC-Hard, it goes
    round the outer corner, where the new noise rises to 5 before the old one falls. Nothing is calibrated.
    Images are drawn anew for each cell, without repeats within it.

    >>> walk = make("drift", seed=43, images_per_cell=64)
    >>> [str(walk.spans(k)[0].domain) for k in (0, 10, 20, 30, 40)]
    ['gaussian_noise 5', 'gaussian_noise 5 + impulse_noise 2.5', 'gaussian_noise 5 + impulse_noise 5',
     'gaussian_noise 2.5 + impulse_noise 5', 'impulse_noise 5']
    """

    level: str | float | Sequence[str] = "hard"
    images_per_cell: Count = 256
    target: Percent = 0.0

    default_steps: ClassVar[int] = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        noise_types(self.level)

    def schedule(self, *, seed: int, size: int, batch: int, steps: int | None) -> Schedule:
        images = (self.default_steps if steps is None else steps) * batch
        path = find_path(synthetic_matrix(), self.target)
        walks = -(-images // (len(path) * self.images_per_cell))
        noises = noise_chain(self.level, seed, walks + 1)
        return join(chained_walks(noises, lambda first, second: path, self.images_per_cell)).take(images)


@registry.register("drift-easy")
@dataclass(frozen=True)
class DriftEasy(Drift):
    """`drift` over the fourteen types of CCC-Easy, at severities up to about half of what there is.

    >>> walk = make("drift-easy", seed=43, images_per_cell=64)
    >>> [str(walk.spans(k)[0].domain) for k in (0, 11, 20)]
    ['gaussian_noise 2.25', 'gaussian_noise 1 + glass_blur 1.5', 'glass_blur 2.75']
    """

    level: str | float | Sequence[str] = "easy"
    target: Percent = 30.0


@registry.register("recurring")
@dataclass(frozen=True)
class Recurring(Recipe):
    """A few corruptions in turn, visited again and again, as in IN-C recurring.

    Each visit shows the same images in the same order with the same noise, and ends with a short batch if need be.
    `visits` defaults to 20, or to as many as `steps` takes; `images` of each visit defaults to the whole set.

    >>> stream = make("recurring", visits=3, images=128)
    >>> [str(batch.domain) for batch in stream.batches(stop=8)][::2]
    ['gaussian_noise 5', 'shot_noise 5', 'impulse_noise 5', 'contrast 5']
    >>> len(stream), bool((stream[1].images == stream[9].images).all())
    (24, True)
    """

    corruptions: tuple[str, ...] = ("gaussian_noise", "shot_noise", "impulse_noise", "contrast")
    severity: float = 5.0
    visits: Count | None = None
    images: Count | None = None

    renewal: ClassVar[Renewal] = "same"
    noise: ClassVar[Noise] = "fixed"
    cross: ClassVar[bool] = False
    default_visits: ClassVar[int] = 20

    def __post_init__(self) -> None:
        if isinstance(self.corruptions, str) or not self.chosen():
            raise ValueError(f"corruptions must be a list of names such as ['fog', 'snow'], got {self.corruptions!r}")
        object.__setattr__(self, "corruptions", tuple(self.corruptions))
        super().__post_init__()

    def chosen(self) -> tuple[str, ...]:
        """The corruptions of one visit, in their order."""
        return tuple(self.corruptions)

    def domains(self) -> tuple[Domain, ...]:
        """The domains of one visit, in their order."""
        return tuple(Domain((name, self.severity)) for name in self.chosen())

    def images_per_domain(self, size: int) -> int:
        """How many images each domain shows at each visit, of a set of `size`."""
        return size if self.images is None else self.images

    def visits_for(self, steps: int | None, per_visit: int) -> int:
        """How many visits there are, when `per_visit` batches make one."""
        if self.visits is not None:
            return self.visits
        return self.default_visits if steps is None else -(-steps // per_visit)

    def schedule(self, *, seed: int, size: int, batch: int, steps: int | None) -> Schedule:
        images, domains = self.images_per_domain(size), self.domains()
        per_visit = len(domains) * max(1, images // batch)  # at least, whether short batches count or not
        return join(hold(domain, images) for domain in domains) * self.visits_for(steps, per_visit)
