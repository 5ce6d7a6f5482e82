"""Trained networks by name."""

from tidefast.models import bundled, imagenet
from tidefast.models.base import ModelEntry, build, load, registry
from tidefast.models.declared import ModelInput, declared_input
from tidefast.models.selection import select_classes

list_models = registry.names

__all__ = [
    "ModelEntry",
    "ModelInput",
    "build",
    "bundled",
    "declared_input",
    "imagenet",
    "list_models",
    "load",
    "registry",
    "select_classes",
]
