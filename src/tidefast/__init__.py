"""Long-term test-time adaptation: classifiers that follow their drifting test stream and do not collapse."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

try:
    __version__ = version("tidefast")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

from tidefast import methods, resets
from tidefast.adapter import Adapter
from tidefast.core.record import Callback, History, JsonLines, StepRecord
from tidefast.errors import FolderError, NonFiniteError, SnapshotError, TidefastError, UnknownNameError
from tidefast.fleet import Fleet
from tidefast.methods.reservoir import Reservoir
from tidefast.preparation import Preparation, prepare

_ON_DEMAND = ("bench", "corruptions", "datasets", "models", "streams", "testing")
"""Parts that are imported when first touched, because an adapter in production needs none of them."""

adapt = Adapter
list_methods = methods.base.registry.names
list_resets = resets.base.registry.names
register_method = methods.base.registry.register
register_reset = resets.base.registry.register


def list_streams(pattern: str = "*") -> list[str]:
    """Registered streams whose names match a shell pattern, sorted."""
    from tidefast import streams

    return streams.registry.names(pattern)


def list_models(pattern: str = "*") -> list[str]:
    """Registered networks whose names match a shell pattern, sorted."""
    from tidefast import models

    return models.registry.names(pattern)


def __getattr__(name: str) -> ModuleType:
    if name in _ON_DEMAND:
        return import_module(f"tidefast.{name}")
    raise AttributeError(f"module 'tidefast' has no attribute {name!r}")


__all__ = [
    "Adapter",
    "Callback",
    "Fleet",
    "FolderError",
    "History",
    "JsonLines",
    "NonFiniteError",
    "Preparation",
    "Reservoir",
    "SnapshotError",
    "StepRecord",
    "TidefastError",
    "UnknownNameError",
    "adapt",
    "list_methods",
    "list_models",
    "list_resets",
    "list_streams",
    "methods",
    "prepare",
    "register_method",
    "register_reset",
    "resets",
]
