"""Reservoir: several models, each for one look of the images."""

from tidefast.methods.reservoir.reservoir import Reservoir

__all__ = ["Reservoir"]
