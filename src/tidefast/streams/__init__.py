"""Seekable streams of labelled images under changing corruptions."""

from tidefast.datasets import LabelledImages, as_tensor
from tidefast.streams import protocols
from tidefast.streams.batch import Batch, Span
from tidefast.streams.cached import CachedStream
from tidefast.streams.ccc import LEVELS, chained_walks, find_path, noise_chain, noise_types, synthetic_matrix, walk
from tidefast.streams.ccc_images import CCCImages
from tidefast.streams.ccc_recipes import CCC1kRecipe, CCCMiniRecipe, CCCRecipe
from tidefast.streams.domain import Domain
from tidefast.streams.domain_order import DomainOrder, InTurn, Runs, Segments
from tidefast.streams.errors import StreamError
from tidefast.streams.matrix import Matrix
from tidefast.streams.named import Recipe, check, make, registry
from tidefast.streams.order import AsGiven, ByLabel, Dirichlet, Order, Shuffled, SlotDirichlet, orders
from tidefast.streams.recurring import RecurringStream
from tidefast.streams.rendering import Corrupted, Rendering
from tidefast.streams.schedule import Schedule, Stretch, hold, join
from tidefast.streams.seekable import Seekable
from tidefast.streams.settings import StreamSettings
from tidefast.streams.shards import CCCShardsRecipe, Shards
from tidefast.streams.stored import Stored
from tidefast.streams.stream import Stream

__all__ = [
    "LEVELS",
    "AsGiven",
    "Batch",
    "ByLabel",
    "CCC1kRecipe",
    "CCCImages",
    "CCCMiniRecipe",
    "CCCRecipe",
    "CCCShardsRecipe",
    "CachedStream",
    "Corrupted",
    "Dirichlet",
    "Domain",
    "DomainOrder",
    "InTurn",
    "LabelledImages",
    "Matrix",
    "Order",
    "Recipe",
    "RecurringStream",
    "Rendering",
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
    "StreamSettings",
    "Stretch",
    "as_tensor",
    "chained_walks",
    "check",
    "find_path",
    "hold",
    "join",
    "make",
    "noise_chain",
    "noise_types",
    "orders",
    "protocols",
    "registry",
    "synthetic_matrix",
    "walk",
]
