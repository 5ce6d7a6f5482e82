"""A name with its options: `eta`, `asr:alpha0=0.3`, `{name: ccc-mini, level: hard}`, `mine.methods:Mine:rate=2`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidefast.core import notation

_OPTIONS = re.compile(r":\s*[A-Za-z_]\w*\s*=")


@dataclass(frozen=True)
class Specification:
    """A registered name (or `module:callable`) and the options that it is made with.

    >>> Specification.parse("ccc-mini:level=hard,speed=128")
    Specification(name='ccc-mini', options={'level': 'hard', 'speed': 128}, title='')
    >>> Specification.parse({"name": "sgd", "lr": 0.01}).label
    'sgd lr=0.01'
    >>> Specification.parse("asr:when=interval:every=512,extent=full").options
    {'when': 'interval:every=512', 'extent': 'full'}
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    title: str = field(default="", compare=False)
    """What tables call it, when the name and the options are not to be spelt out: `{name: eta, title: ETA}`."""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError(f"a name is needed, such as 'eta' or {{name: eta}}, got {self.name!r}")

    @classmethod
    def parse(cls, given: str | Mapping[str, Any] | Specification) -> Specification:
        """From `name:key=value,key=value`, or from a mapping with a `name`."""
        if isinstance(given, Specification):
            return given
        if isinstance(given, Mapping):
            if "name" not in given:
                raise ValueError(f"a mapping needs a name, such as {{name: eta}}, got {dict(given)!r}")
            options = {key: value for key, value in given.items() if key not in ("name", "title")}
            return cls(str(given["name"]), options, str(given.get("title", "")))
        if not isinstance(given, str):
            raise TypeError(f"expected a name, name:key=value or a mapping with a name, got {given!r}")
        start = _OPTIONS.search(given)  # a name may have colons of its own, module:function, and so may a value
        if start is None:
            return cls(given.strip())
        try:
            return cls(given[: start.start()].strip(), notation.options(given[start.start() + 1 :]))
        except ValueError as error:
            raise ValueError(f"expected name:key=value,key=value, got {given!r}: {error}") from error

    def as_plain(self) -> str | dict[str, Any]:
        """The shortest form that `parse` takes back."""
        title = {"title": self.title} if self.title else {}
        return {"name": self.name, **self.options, **title} if self.options or title else self.name

    @property
    def label(self) -> str:
        """For people: its title, or else the name and the options."""
        return self.title or self.spelled

    @property
    def spelled(self) -> str:
        """The name and the options."""
        return " ".join([self.name, *(f"{key}={_short(value)}" for key, value in self.options.items())])


def _short(value: Any) -> str:
    return "+".join(map(_short, value)) if isinstance(value, (list, tuple)) else str(value)
