"""Long-term test-time adaptation: classifiers that follow their drifting test stream and do not collapse."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from tidefast.core.on_demand import on_demand

try:
    __version__ = version("tidefast")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

if TYPE_CHECKING:  # what `_WHERE` says, for those who only read
    from tidefast import bench as bench
    from tidefast import corruptions as corruptions
    from tidefast import datasets as datasets
    from tidefast import errors as errors
    from tidefast import methods, models, resets, streams
    from tidefast import testing as testing
    from tidefast.adapter import Adapter
    from tidefast.core.memory import keep_memory
    from tidefast.core.record import Callback, History, JsonLines, StepRecord
    from tidefast.errors import FolderError, NonFiniteError, SnapshotError, TidefastError, UnknownNameError
    from tidefast.fleet import Fleet
    from tidefast.methods.reservoir import Reservoir
    from tidefast.preparation import Preparation, prepare

    adapt = Adapter
    list_methods = methods.base.registry.names
    list_models = models.registry.names
    list_resets = resets.base.registry.names
    list_streams = streams.registry.names
    register_method = methods.base.registry.register
    register_reset = resets.base.registry.register

_WHERE = {
    "Adapter": "adapter:Adapter",
    "Callback": "core.record:Callback",
    "Fleet": "fleet:Fleet",
    "FolderError": "errors:FolderError",
    "History": "core.record:History",
    "JsonLines": "core.record:JsonLines",
    "NonFiniteError": "errors:NonFiniteError",
    "Preparation": "preparation:Preparation",
    "Reservoir": "methods.reservoir:Reservoir",
    "SnapshotError": "errors:SnapshotError",
    "StepRecord": "core.record:StepRecord",
    "TidefastError": "errors:TidefastError",
    "UnknownNameError": "errors:UnknownNameError",
    "adapt": "adapter:Adapter",
    "bench": "bench",
    "corruptions": "corruptions",
    "datasets": "datasets",
    "errors": "errors",
    "keep_memory": "core.memory:keep_memory",
    "list_methods": "methods:base.registry.names",
    "list_models": "models:registry.names",
    "list_resets": "resets:base.registry.names",
    "list_streams": "streams:registry.names",
    "methods": "methods",
    "models": "models",
    "prepare": "preparation:prepare",
    "register_method": "methods:base.registry.register",
    "register_reset": "resets:base.registry.register",
    "resets": "resets",
    "streams": "streams",
    "testing": "testing",
}
"""Each public name, and the module and what in it the name stands for.

They are imported when first touched: `tidefast --help` needs no torch, and an adapter in production no benchmark.
"""

__getattr__, __dir__ = on_demand(__name__, _WHERE)

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
    "keep_memory",
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
