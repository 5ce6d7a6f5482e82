"""Trained networks by name."""

from tidefast.models import bundled, imagenet
from tidefast.models.base import Entry, load, registry
from tidefast.models.selection import select_classes

list_models = registry.names

__all__ = ["Entry", "bundled", "imagenet", "list_models", "load", "registry", "select_classes"]
