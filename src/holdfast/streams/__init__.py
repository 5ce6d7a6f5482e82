"""Seekable streams of labelled images under changing corruptions."""

from holdfast.streams import protocols
from holdfast.streams.batch import Batch, Span, as_tensor
from holdfast.streams.ccc import LEVELS, chained_walks, find_path, noise_chain, noise_types, synthetic_matrix, walk
from holdfast.streams.ccc_images import CCCImages
from holdfast.streams.ccc_recipes import CCCMiniRecipe, CCCRecipe
from holdfast.streams.domain import Domain
from holdfast.streams.errors import StreamError
from holdfast.streams.images import LabelledImages
from holdfast.streams.kept import Kept
from holdfast.streams.matrix import Matrix
from holdfast.streams.named import Recipe, make, registry
from holdfast.streams.order import AsGiven, ByLabel, Dirichlet, Order, Shuffled, SlotDirichlet
from holdfast.streams.rendering import Corrupted, Rendering
from holdfast.streams.request import Request
from holdfast.streams.route import InTurn, Route, Runs, Segments
from holdfast.streams.schedule import Schedule, Stretch, hold, join
from holdfast.streams.seekable import Seekable
from holdfast.streams.shards import CCCShardsRecipe, Shards
from holdfast.streams.stored import Stored
from holdfast.streams.stream import Stream
from holdfast.streams.tour import Tour

__all__ = [
    "LEVELS",
    "AsGiven",
    "Batch",
    "ByLabel",
    "CCCImages",
    "CCCMiniRecipe",
    "CCCRecipe",
    "CCCShardsRecipe",
    "Corrupted",
    "Dirichlet",
    "Domain",
    "InTurn",
    "Kept",
    "LabelledImages",
    "Matrix",
    "Order",
    "Recipe",
    "Rendering",
    "Request",
    "Route",
    "Runs",
    "Schedule",
    "Seekable",
    "Segments",
    "Shards",
    "Shuffled",
    "SlotDirichlet",
    "Span",
    "Stored",
    "Stream",
    "StreamError",
    "Stretch",
    "Tour",
    "as_tensor",
    "chained_walks",
    "find_path",
    "hold",
    "join",
    "make",
    "noise_chain",
    "noise_types",
    "protocols",
    "registry",
    "synthetic_matrix",
    "walk",
]
