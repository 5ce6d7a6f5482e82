"""Names for methods, policies, streams and so on, ours and those of other packages; and what they stand for, made."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import importlib
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from tidefast.core.specification import Given, Specification, bound, called, imported
from tidefast.errors import SpecificationError, UnknownNameError

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Generic[T]):
    """Maps names to the classes of one kind; other packages join by decorator or by entry point.

    An installed package adds a name with an entry point in the group `tidefast.<kind>s`; it is
    imported when a name is first looked up that is not registered already, or when names are listed.
    `base`: what everything of this kind is an instance of. `own`: what else may be given, for who asks for a name that
    is not there.
    """

    def __init__(self, kind: str, base: type = object, *, own: str = "") -> None:
        self.kind, self.base, self.own = kind, base, own and f"; {own}"
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

    def adopt(self, classes: Mapping[str, type[T]]) -> None:
        """Names for classes that are not ours to change."""
        self._classes.update(classes)

    def modules(self) -> set[str]:
        """Where the classes are defined that are neither tidefast's nor adopted."""
        named = [cls for name, cls in self._classes.items() if getattr(cls, "name", None) == name]
        return {cls.__module__ for cls in named if not cls.__module__.startswith("tidefast.")}

    def discover(self, package: str) -> dict[str, type[T]]:
        """Import every module of a package, and give the classes that they register, by their own names."""
        for module in pkgutil.iter_modules(sys.modules[package].__path__, f"{package}."):
            importlib.import_module(module.name)
        classes = (cls for cls in self._classes.values() if cls.__module__.startswith(f"{package}."))
        return {cls.__name__: cls for cls in classes}

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

    def make(self, given: T | Given, /, **options: Any) -> T:
        """What a specification stands for: a name, a name with options, a mapping, `module:callable`; or it itself.

        `options` come on top of those of the specification, and these on top of what a variant sets.

        >>> from tidefast.resets.base import registry
        >>> registry.make("periodic:every=5") == registry.make({"name": "periodic", "every": 5})
        True
        >>> registry.make("tidefast.resets:Periodic:evry=5")
        Traceback (most recent call last):
        ...
        tidefast.errors.SpecificationError: reset 'tidefast.resets:Periodic' has no option 'evry'; its options: every
        """
        if not isinstance(given, (str, Mapping, Specification)):
            if not isinstance(given, self.base) or options:
                article = "an" if self.base.__name__[0] in "AEIOU" else "a"
                raise SpecificationError(
                    f"{self.kind} must be {article} {self.base.__name__}, its name, or a mapping with its name, "
                    f"got {given!r}"
                )
            return given
        specification = Specification.parse(given).but(**options)
        what = f"{self.kind} {specification.name!r}"
        made = called(what, self.bound(specification))
        if not isinstance(made, self.base):
            raise SpecificationError(f"{what} must give a {self.base.__name__}, got {type(made).__name__}")
        return made

    def bound(self, given: Given, *, positional: int = 0, also: str = "") -> functools.partial[T]:
        """The class or function that a specification stands for, with its options: checked, and not yet called."""
        specification = Specification.parse(given)
        what = f"{self.kind} {specification.name!r}"
        make, usual = self._found(specification)
        options = {**usual, **specification.options}
        return bound(what, make, options, base=self.base, positional=positional, also=also)

    def _found(self, specification: Specification) -> tuple[Callable[..., T], dict[str, Any]]:
        name = specification.name
        if not specification.is_address:
            return self.resolve(name)
        try:
            target = imported(name)
        except SpecificationError as error:
            first = name.partition(":")[0].lower()
            if first in self._classes or first in self._aliases or first in self._variants:
                raise SpecificationError(f"expected name:key=value,key=value, got {name!r}") from error
            raise SpecificationError(f"{self.kind} {name!r}: {error}") from error
        if isinstance(target, type) and issubclass(target, self.base) and "name" not in vars(target):
            target.name = name  # type: ignore[attr-defined]  # as `register` does: what snapshots and tables call it
        return target, {}

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
            raise UnknownNameError(f"unknown {self.kind} {name!r}; {hint}known: {', '.join(self.names())}{self.own}")
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
