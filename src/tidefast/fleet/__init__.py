"""Many streams over one set of frozen weights."""

from tidefast.fleet.fleet import Fleet

__all__ = ["Fleet"]
