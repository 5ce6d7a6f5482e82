"""Long-term test-time adaptation: classifiers that follow their drifting test stream and do not collapse."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("holdfast")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

from holdfast import methods, resets
from holdfast.adapter import Adapter, adapt
from holdfast.errors import HoldfastError, NonFiniteError, SnapshotError, UnknownNameError
from holdfast.preparation import Preparation, prepare
from holdfast.record import Callback, History, JsonLines, StepRecord

list_methods = methods.base.registry.names
list_resets = resets.base.registry.names
register_method = methods.base.registry.register
register_reset = resets.base.registry.register

__all__ = [
    "Adapter",
    "Callback",
    "History",
    "HoldfastError",
    "JsonLines",
    "NonFiniteError",
    "Preparation",
    "SnapshotError",
    "StepRecord",
    "UnknownNameError",
    "adapt",
    "list_methods",
    "list_resets",
    "methods",
    "prepare",
    "register_method",
    "register_reset",
    "resets",
]
