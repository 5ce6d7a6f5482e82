"""A service for many streams: predict and adapt over HTTP, watched, and never lost (extra `serve`)."""

from typing import TYPE_CHECKING

from tidefast.core.on_demand import on_demand

if TYPE_CHECKING:  # what `_WHERE` says, for those who only read
    from tidefast.serve.assembly import open_service
    from tidefast.serve.http import make_app
    from tidefast.serve.server import run
    from tidefast.serve.service import Service
    from tidefast.serve.settings import Settings
    from tidefast.serve.watch import Alarm, Bounds, ImageStatistics, Watch

_WHERE = {
    "Alarm": "watch:Alarm",
    "Bounds": "watch:Bounds",
    "ImageStatistics": "watch:ImageStatistics",
    "Service": "service:Service",
    "Settings": "settings:Settings",
    "Watch": "watch:Watch",
    "make_app": "http:make_app",
    "open_service": "assembly:open_service",
    "run": "server:run",
}
"""On demand, because the command line reads the settings without starting a service."""

__getattr__, __dir__ = on_demand(__name__, _WHERE, extra="serve")

__all__ = ["Alarm", "Bounds", "ImageStatistics", "Service", "Settings", "Watch", "make_app", "open_service", "run"]
