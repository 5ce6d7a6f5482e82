"""A service for many streams: predict and adapt over HTTP, watched, and never lost (extra `serve`)."""

from tidefast.serve.assembly import open_service
from tidefast.serve.http import make_app
from tidefast.serve.server import run
from tidefast.serve.service import Service
from tidefast.serve.settings import Settings
from tidefast.serve.watch import Alarm, Bounds, ImageStatistics, Watch

__all__ = ["Alarm", "Bounds", "ImageStatistics", "Service", "Settings", "Watch", "make_app", "open_service", "run"]
