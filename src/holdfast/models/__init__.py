"""Trained networks by name."""

from holdfast.models import bundled
from holdfast.models.base import Entry, load, registry

list_models = registry.names

__all__ = ["Entry", "bundled", "list_models", "load", "registry"]
