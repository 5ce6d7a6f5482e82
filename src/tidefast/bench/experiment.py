"""One experiment: a model, a stream, a method, a reset policy, a seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidefast.bench import text
from tidefast.core.constraints import Constrained, Count, CountOrZero
from tidefast.core.specification import Specification
from tidefast.datasets.tensors import SOURCE_IMAGES

_PARTS = ("model", "stream", "method", "reset", "optimizer")
_NEVER, _BUNDLED = Specification("never"), Specification("bundled-resnet")
_TITLES = {"source": "Source", "batchnorm": "BatchNorm", "tent": "Tent", "periodic": "RDumb"}


@dataclass(frozen=True)
class Experiment(Constrained):
    """What a run is; equal experiments give equal bits.

    Parts are names, `name:key=value` or mappings `{name: ..., key: value}`; see `tidefast list`. A name may also be
    `module:Class` or `module:function`. `optimizer` is a class of torch.optim in small letters; left out, the method's
    published choice.
    `device`: where the network is, such as "cuda:0"; bits are those of the device.
    `steps`, `batch`: left out, the whole stream, in batches of its protocol. `window`, `gather`: see `Adapter`.
    `source`: for methods that need source images, the path of a `tidefast.prepare` file or of a data set; left out,
    `source_images` clean images of the stream's own set.

    >>> experiment = Experiment(stream="drift", method="eta", reset="asr", seed=43, steps=100, batch=32)
    >>> experiment.label, experiment.key
    ('ETA + ASR', 'drift/eta+asr/seed43-9e4b95c2')
    """

    stream: Specification
    method: Specification
    reset: Specification = _NEVER
    model: Specification = _BUNDLED
    optimizer: Specification | None = None
    seed: CountOrZero = 0
    steps: Count | None = None
    batch: Count | None = None
    window: Count = 16
    gather: Count | None = None
    source: str | None = None
    source_images: Count = SOURCE_IMAGES
    device: str = "cpu"

    def __init__(self, stream: Any, method: Any, **fields: Any) -> None:
        defaults = {f.name: f.default for f in dataclasses.fields(self) if f.default is not dataclasses.MISSING}
        unknown = fields.keys() - defaults.keys()
        if unknown:
            raise ValueError(
                f"an experiment has no {', '.join(map(repr, sorted(unknown)))}; "
                f"it has {', '.join(f.name for f in dataclasses.fields(self))}"
            )
        values = {**defaults, **fields, "stream": stream, "method": method}
        values["reset"] = "never" if values["reset"] is None else values["reset"]
        for name, value in values.items():
            if name in _PARTS and not isinstance(value, (str, Mapping, Specification, type(None))):
                raise ValueError(
                    f"{name} must be a name, name:key=value or a mapping with a name, got {type(value).__name__} "
                    f"{str(value)[:80]}"
                )
            part = _plain(Specification.parse(value)) if name in _PARTS and value is not None else value
            object.__setattr__(self, name, part)
        self.__post_init__()  # an own __init__, which a dataclass leaves alone, calls it itself

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Experiment:
        """From a plain mapping, as a YAML file or `as_plain` gives it."""
        if not isinstance(fields, Mapping):
            raise ValueError(f"an experiment is a mapping such as {{stream: drift, method: eta}}, got {fields!r}")
        missing = [name for name in ("stream", "method") if fields.get(name) is None]
        if missing:
            raise ValueError(f"an experiment needs a {' and a '.join(missing)}")
        return cls(**fields)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Experiment:
        """From a YAML file."""
        try:
            return cls.of(text.parse(Path(path).read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error

    def as_plain(self) -> dict[str, Any]:
        """Everything that was given, as `of` takes it back; what is as usual is left out."""
        plain: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default or field.name in ("stream", "method"):
                plain[field.name] = value.as_plain() if isinstance(value, Specification) else value
        return plain

    @property
    def label(self) -> str:
        """The method and its reset policy, for people."""
        reset = [] if self.reset.name == "never" else [_title(self.reset)]
        return " + ".join([_title(self.method), *reset])

    @property
    def digest(self) -> str:
        """Eight characters that tell experiments apart."""
        parts = {name: dataclasses.replace(part, title="") for name in _PARTS if (part := getattr(self, name))}
        plain = json.dumps(dataclasses.replace(self, **parts).as_plain(), sort_keys=True)
        return hashlib.blake2b(plain.encode(), digest_size=4).hexdigest()

    @property
    def key(self) -> str:
        """The folder of its run below that of a sweep."""
        contestant = [self.method.spelled, *([] if self.reset.name == "never" else [self.reset.spelled])]
        return f"{_slug(self.stream.spelled)}/{_slug('+'.join(contestant))}/seed{self.seed}-{self.digest}"


def _plain(part: Specification) -> Specification:
    try:
        json.dumps(part.options, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the options of {part.name!r} must be plain values (numbers, text, lists), got {part.options!r}"
        ) from error
    return part


def _title(part: Specification) -> str:
    if part.title:
        return part.title
    options = ", ".join(f"{key} {value}" for key, value in part.options.items())
    name, _, variant = part.name.partition("-")  # asr-no-recovery
    if part.is_address:  # of somebody's own, who has given it its name
        name, variant = part.name.rpartition(":")[2], ""
    details = ", ".join(filter(None, (variant.replace("-", " "), options)))
    return (name if part.is_address else _TITLES.get(name, name.upper())) + (f" ({details})" if details else "")


def _slug(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+=_-]+", "-", label).strip("-")[:80]
