"""Packages that come with an extra of this project: whatever misses one says how to get it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidefast.errors import how_to_install

_DATA = frozenset({"PIL", "cv2", "numba", "scipy"})
_BENCH = _DATA | {"loky", "pyarrow", "yaml"}
_SERVE = frozenset({"PIL", "fastapi", "prometheus_client", "python_multipart", "uvicorn"})
PACKAGES = {
    "data": _DATA,
    "bench": _BENCH,
    "figures": _BENCH | {"matplotlib"},
    "serve": _SERVE,
    "otel": _SERVE | {"opentelemetry"},
}
"""By extra: what is imported of it, by the names that Python knows them by."""


@contextlib.contextmanager
def needed(extra: str | None, by: str) -> Iterator[None]:
    """Within it, when a package of the extra is missing, the extra is named instead of the package alone."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if extra is None or missing not in PACKAGES[extra]:
            raise
        raise ModuleNotFoundError(  # with the name: who needs a larger extra can name that one
            f"{by} needs packages that are not installed ({missing}): {how_to_install(extra)}", name=missing
        ) from error
