"""Packages that come with an extra of this project: a command that misses one says how to get it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidefast.errors import how_to_install

_DATA = frozenset({"PIL", "cv2", "numba", "scipy"})
_BENCH = _DATA | {"loky", "pyarrow", "yaml"}
PACKAGES = {
    "data": _DATA,
    "bench": _BENCH,
    "figures": _BENCH | {"matplotlib"},
    "serve": frozenset({"PIL", "fastapi", "prometheus_client", "python_multipart", "uvicorn"}),
}
"""By extra: what is imported of it, by the names that Python knows them by."""


@contextlib.contextmanager
def named(command: str, extra: str | None) -> Iterator[None]:
    """When a package of the command's extra is missing, name the extra instead of the package alone."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if extra is None or missing not in PACKAGES[extra]:
            raise
        raise ImportError(
            f"tidefast {command} needs packages that are not installed ({missing}): {how_to_install(extra)}"
        ) from error
