"""Trained networks by name."""

from holdfast.models import bundled, imagenet
from holdfast.models.base import Entry, load, registry
from holdfast.models.selection import select_classes

list_models = registry.names

__all__ = ["Entry", "bundled", "imagenet", "list_models", "load", "registry", "select_classes"]
