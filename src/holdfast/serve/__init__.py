"""A service for many streams: predict and adapt over HTTP, watched, and never lost (extra `serve`)."""

from holdfast.serve.assembly import open_service
from holdfast.serve.http import make_app
from holdfast.serve.server import run
from holdfast.serve.service import Service
from holdfast.serve.settings import Settings
from holdfast.serve.watch import Alarm, Bounds, ImageStatistics, Watch

__all__ = ["Alarm", "Bounds", "ImageStatistics", "Service", "Settings", "Watch", "make_app", "open_service", "run"]
