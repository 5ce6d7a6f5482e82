"""Names for methods and reset policies, ours and those of other packages."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from tidefast.errors import UnknownNameError

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Generic[T]):
    """Maps names to the classes of one kind; other packages join by decorator or by entry point.

    An installed package adds a name with an entry point in the group `tidefast.<kind>s`; it is
    imported when a name is first looked up that is not registered already, or when names are listed.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}
        self._aliases: dict[str, str] = {}
        self._variants: dict[str, tuple[str, dict[str, Any]]] = {}
        self._plugins_loaded = False

    def register(self, name: str, *aliases: str) -> Callable[[C], C]:
        """Class decorator: make the class available under `name` (and `aliases`, which are not listed)."""

        def decorate(cls: C) -> C:
            for key in (name, *aliases):
                if key in self._variants:
                    raise ValueError(f"the {self.kind} name {key!r} is taken by a variant of {self._variants[key][0]}")
                taken = self._classes.get(self._aliases.get(key, key))
                if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
                    raise ValueError(
                        f"the {self.kind} name {key!r} is taken by {taken.__module__}.{taken.__qualname__}"
                    )
            self._classes[name] = cls
            self._aliases.update(dict.fromkeys(aliases, name))
            cls.name = name  # type: ignore[attr-defined]  # every registered base class declares `name`
            return cls

        return decorate

    def variant(self, name: str, of: str, **options: Any) -> None:
        """Give a class with some of its options set a name of its own, such as `asr-full`.

        >>> from dataclasses import dataclass
        >>> registry: Registry[object] = Registry("thing")
        >>> @registry.register("line")
        ... @dataclass
        ... class Line:
        ...     width: int = 1
        >>> registry.variant("line-thick", "line", width=3)
        >>> registry.make("line-thick").width
        3
        """
        self.resolve(of)
        if name in self._classes or name in self._aliases or self._variants.get(name, (of, options)) != (of, options):
            raise ValueError(f"the {self.kind} name {name!r} is taken")
        self._variants[name] = of, options

    def names(self, pattern: str = "*") -> list[str]:
        """Registered names that match a shell pattern, sorted; without variants."""
        self._load_plugins()
        return sorted(fnmatch.filter(self._classes, pattern.lower()))

    def variants(self, pattern: str = "*") -> dict[str, tuple[str, dict[str, Any]]]:
        """Variants that match a shell pattern: what each is one of, and the options it sets."""
        return {name: self._variants[name] for name in fnmatch.filter(self._variants, pattern.lower())}

    def get(self, name: str) -> type[T]:
        """The class registered under `name`, or that it is a variant of."""
        return self.resolve(name)[0]

    def make(self, name: str, **options: Any) -> T:
        """An instance by name; `options` come on top of what a variant sets."""
        cls, usual = self.resolve(name)
        return cls(**{**usual, **options})

    def resolve(self, name: str) -> tuple[type[T], dict[str, Any]]:
        """The class that a name stands for, and the options that it sets; an unknown name suggests the nearest."""
        if name.lower() in self._variants:
            of, options = self._variants[name.lower()]
            cls, usual = self.resolve(of)
            return cls, {**usual, **options}
        key = self._aliases.get(name.lower(), name.lower())
        if key not in self._classes:
            self._load_plugins()
            key = self._aliases.get(key, key)
        if key not in self._classes:
            near = difflib.get_close_matches(key, [*self._classes, *self._aliases, *self._variants], n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownNameError(f"unknown {self.kind} {name!r}; {hint}known: {', '.join(self.names())}")
        return self._classes[key], {}

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for entry in entry_points(group=f"tidefast.{self.kind}s"):
            try:
                loaded = entry.load()
            except Exception as error:  # one broken plug-in must not take the others down
                warnings.warn(
                    f"the {self.kind} plug-in {entry.name!r} ({entry.value}) failed to import: {error!r}", stacklevel=2
                )
                continue
            if entry.name not in self._classes and entry.name not in self._variants:
                self.register(entry.name)(loaded)


def imported(address: str) -> Callable[..., Any]:
    """What `module:name` stands for; modules in the current folder are found too.

    >>> imported("math:sqrt")(9.0)
    3.0
    """
    module, _, name = address.partition(":")
    if str(Path.cwd()) not in sys.path:  # a script's own folder is there, but not that of whoever calls `tidefast`
        sys.path.insert(0, str(Path.cwd()))
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
