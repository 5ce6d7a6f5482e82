"""Seekable streams of labelled images under changing corruptions."""

from holdfast.streams.batch import Batch, Span
from holdfast.streams.ccc import LEVELS, chained_walks, find_path, noise_chain, noise_types, synthetic_matrix, walk
from holdfast.streams.domain import Domain
from holdfast.streams.errors import StreamError
from holdfast.streams.images import LabelledImages
from holdfast.streams.named import Recipe, make, registry
from holdfast.streams.order import AsGiven, ByLabel, Dirichlet, Order, Shuffled, SlotDirichlet
from holdfast.streams.rendering import Corrupted, Rendering
from holdfast.streams.schedule import Schedule, Stretch, hold, join
from holdfast.streams.seekable import Seekable
from holdfast.streams.stream import Stream

__all__ = [
    "LEVELS",
    "AsGiven",
    "Batch",
    "ByLabel",
    "Corrupted",
    "Dirichlet",
    "Domain",
    "LabelledImages",
    "Order",
    "Recipe",
    "Rendering",
    "Schedule",
    "Seekable",
    "Shuffled",
    "SlotDirichlet",
    "Span",
    "Stream",
    "StreamError",
    "Stretch",
    "chained_walks",
    "find_path",
    "hold",
    "join",
    "make",
    "noise_chain",
    "noise_types",
    "registry",
    "synthetic_matrix",
    "walk",
]
