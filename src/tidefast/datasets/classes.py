"""Which output of a model each class of a data set is."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Protocol, Self, TypeAlias, TypeVar

import numpy as np

from tidefast.datasets.errors import DatasetError
from tidefast.datasets.folder import FILE, some
from tidefast.datasets.imageset import Labels, ModelClasses
from tidefast.datasets.subset import LabelledSet

ClassesGiven: TypeAlias = int | str | os.PathLike[str] | Sequence[str] | Mapping[str, int]
"""How many classes the model has, or which: their names in the order of its outputs, the index of each name, a file
with either, or "imagenet"."""


class Relabelable(LabelledSet, Protocol):
    """A set of images whose labels can be given anew; `ImageSet`, `ImageFolder` and `Subset` are."""

    def relabelled(self, labels: Labels, classes: tuple[str, ...], /) -> Self: ...


LabelledData = TypeVar("LabelledData", bound=Relabelable)

IMAGENET = "imagenet"
_REMEDY = (
    "name the classes by their index, or by their WordNet id where the model has ImageNet's 1000; or put a file "
    f"{FILE} beside the class folders with the names of the model's classes, one on each line in the order of its "
    "outputs; or give such a file, or a .json of names and indices, as classes= (--classes)"
)


def matched(data: LabelledData, classes: ClassesGiven, model_names: Sequence[str] = ()) -> LabelledData:
    """The same images with the labels that a model gives them, found by the names of their classes.

    classes: the number of the model's classes; then names that are indices say it themselves, WordNet ids are
    ImageNet's where the model has 1000 classes, `model_names` are what the model calls its outputs, and as many names
    as the model has classes are its classes in that order. Or what says it outright: the model's class names in the
    order of its outputs, a mapping from names to indices, a file of either (.txt with a name on each line, .json), or
    "imagenet". Names that cannot be matched are a DatasetError that says what to do.

    >>> from tidefast.datasets import ImageSet
    >>> photos = ImageSet(np.zeros((2, 8, 8, 3), np.uint8), np.array([0, 1]), ("n01443537", "n02123045"))
    >>> matched(photos, 1000).labels.tolist(), matched(photos, 2).labels.tolist()
    ([1, 281], [0, 1])
    >>> matched(photos, {"n01443537": 4, "n02123045": 2}).labels.tolist()
    [4, 2]
    """
    if isinstance(classes, bool) or (isinstance(classes, int) and classes < 1):
        raise ValueError(f"classes must be a number of classes, their names or a file of them, got {classes!r}")
    if isinstance(classes, int):
        names, indices = _of_model(data.classes, classes, model_names)
    else:
        names = _named(classes)
        indices = _looked_up(data.classes, names)
    labels = np.asarray(indices, np.int64)[data.labels]
    return data.relabelled(labels, names)


def require_match(names: Sequence[str], count: int, model_names: Sequence[str] = ()) -> None:
    """That labels which are positions among `names` are those of a model with `count` classes.

    >>> require_match(("0", "1", "2"), 10)
    >>> require_match(("cat", "dog"), 10)
    Traceback (most recent call last):
    ...
    tidefast.datasets.errors.DatasetError: the 2 classes of the images ('cat', 'dog') cannot be matched ...
    """
    _, indices = _of_model(names, count, model_names)
    if indices != list(range(len(names))):
        raise DatasetError(
            f"the {len(names)} classes of the images ({some(names, 3)}) are not the first of the model's {count}, and "
            f"their labels are: {_REMEDY}"
        )


@functools.cache
def imagenet_ids() -> ModelClasses:
    """The WordNet ids of ImageNet's 1,000 classes, in the order of their indices.

    >>> len(imagenet_ids()), imagenet_ids()[281]
    (1000, 'n02123045')
    """
    text = resources.files("tidefast.datasets").joinpath("imagenet_wordnet_ids.txt").read_text(encoding="utf-8")
    return ModelClasses(text.split())


def _of_model(names: Sequence[str], count: int, model_names: Sequence[str]) -> tuple[ModelClasses, list[int]]:
    """The names of the model's classes, as far as they are known, and the index of each of `names`."""
    if len(names) > count:
        raise DatasetError(
            f"the images have {len(names)} classes ({some(names, 3)}), the model answers with {count}: leave out those "
            "it does not know, or give classes= (--classes) the names of the model's, one on each line of a file"
        )
    if isinstance(names, ModelClasses):
        return names, list(range(len(names)))
    numbers = {place: int(name) for place, name in enumerate(names) if name.isdecimal()}
    if numbers and all(place == number for place, number in numbers.items()):  # those between stand in their places
        return ModelClasses(names), list(range(len(names)))
    if len(numbers) == len(names) == len(set(numbers.values())) and max(numbers.values()) < count:
        return ModelClasses(map(str, range(count))), list(numbers.values())
    for known in (model_names, imagenet_ids()):
        if len(known) == count and set(names) <= set(known):
            return ModelClasses(known), _looked_up(names, known)
    if len(names) == count:
        return ModelClasses(names), list(range(count))
    raise DatasetError(
        f"the {len(names)} classes of the images ({some(names, 3)}) cannot be matched with the {count} of the model: "
        + _REMEDY
    )


def _looked_up(names: Sequence[str], known: Sequence[str]) -> list[int]:
    places = {name: place for place, name in enumerate(known)}
    strange = [name for name in names if name not in places]
    if strange:
        raise DatasetError(
            f"{len(strange)} of the {len(names)} classes of the images are not among the {len(known)} that were given "
            f"({some(strange)}): leave them out, or add them"
        )
    return [places[name] for name in names]


def _named(classes: str | os.PathLike[str] | Sequence[str] | Mapping[str, int]) -> ModelClasses:
    """The model's class names by index; a number stands where there is none."""
    if isinstance(classes, Mapping):
        return _by_index(classes)
    if not isinstance(classes, (str, os.PathLike)):
        return _distinct(classes, "classes")
    return imagenet_ids() if classes == IMAGENET else read_classes(classes)


def read_classes(path: str | os.PathLike[str]) -> ModelClasses:
    """A model's class names from a file: one on each line in the order of its outputs, or .json with their indices.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Path(root, "map.json").write_text('{"cat": 2, "dog": 0}')
    ...     read_classes(Path(root, "map.json"))
    ('dog', '1', 'cat')
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        if Path(path).suffix != ".json":
            return _distinct([line.strip() for line in text.splitlines() if line.strip()], str(path))
        content = json.loads(text)
    except (OSError, ValueError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(
            f"no class names at {str(path)!r} ({error}): expected a file with one on each line, a .json of names and "
            f"indices, or {IMAGENET!r}"
        ) from None
    if isinstance(content, list):
        return _distinct(list(map(str, content)), str(path))
    if not isinstance(content, dict):
        raise DatasetError(f"{path} holds neither a list of class names nor an object of names and indices")
    if all(isinstance(value, str) for value in content.values()):  # {"0": "cat"}, as Hugging Face's id2label
        content = {name: int(index) if index.isdecimal() else index for index, name in content.items()}
    return _by_index(content)


def _by_index(given: Mapping[str, int]) -> ModelClasses:
    bad = {name: index for name, index in given.items() if type(index) is not int or index < 0}
    if bad or not given or len(set(given.values())) != len(given):
        raise DatasetError(
            "a mapping of classes gives each name an index of its own, 0 or more, as {'cat': 281}; got "
            f"{dict(list((bad or given).items())[:3])}"
        )
    names = list(map(str, range(max(given.values()) + 1)))
    for name, index in given.items():
        names[index] = name
    return _distinct(names, "the mapping of classes")


def _distinct(names: Sequence[str], what: str) -> ModelClasses:
    twice = sorted({name for name in names if list(names).count(name) > 1}) if len(set(names)) < len(names) else []
    if twice or not names:
        raise DatasetError(f"{what}: expected different class names, got {some(twice) + ' twice' if twice else 'none'}")
    return ModelClasses(names)
