"""Long-term test-time adaptation: classifiers that follow their drifting test stream and do not collapse."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

try:
    __version__ = version("holdfast")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

from holdfast import methods, resets
from holdfast.adapter import Adapter
from holdfast.errors import FolderError, HoldfastError, NonFiniteError, SnapshotError, UnknownNameError
from holdfast.fleet import Fleet
from holdfast.methods.reservoir import Reservoir
from holdfast.preparation import Preparation, prepare
from holdfast.record import Callback, History, JsonLines, StepRecord

_ON_DEMAND = ("bench", "calibration", "corruptions", "datasets", "models", "streams", "testing")
"""Parts that are imported when first touched, because an adapter in production needs none of them."""

adapt = Adapter
list_methods = methods.base.registry.names
list_resets = resets.base.registry.names
register_method = methods.base.registry.register
register_reset = resets.base.registry.register


def list_streams(pattern: str = "*") -> list[str]:
    """Registered streams whose names match a shell pattern, sorted."""
    from holdfast import streams

    return streams.registry.names(pattern)


def list_models(pattern: str = "*") -> list[str]:
    """Registered networks whose names match a shell pattern, sorted."""
    from holdfast import models

    return models.registry.names(pattern)


def __getattr__(name: str) -> ModuleType:
    if name in _ON_DEMAND:
        return import_module(f"holdfast.{name}")
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


__all__ = [
    "Adapter",
    "Callback",
    "Fleet",
    "FolderError",
    "History",
    "HoldfastError",
    "JsonLines",
    "NonFiniteError",
    "Preparation",
    "Reservoir",
    "SnapshotError",
    "StepRecord",
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
