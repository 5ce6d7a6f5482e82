"""Names of a package that are imported when they are first touched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any

from tidefast.core.extras import needed


def on_demand(
    package: str, where: Mapping[str, str], extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names stand in its modules: "module", or "module:what.in.it".

    extra: that of this project which the modules need.
    """
    names = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, path = where[name].partition(":")
        with needed(extra, by=package):
            value = import_module(f"{package}.{module}")
        names[name] = attrgetter(path)(value) if path else value
        return names[name]

    return get, lambda: sorted({*names, *where})
