"""Trained networks by name."""

from tidefast.models import bundled, imagenet
from tidefast.models.base import ModelEntry, load, registry
from tidefast.models.selection import select_classes

list_models = registry.names

__all__ = ["ModelEntry", "bundled", "imagenet", "list_models", "load", "registry", "select_classes"]
