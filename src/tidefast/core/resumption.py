"""What becomes of a saved stream that meets other settings."""

from __future__ import annotations

from typing import Literal, TypeAlias

Resumption: TypeAlias = Literal["same", "saved", "own"]
"""For a file that was saved with another learning rate, other settings of the optimiser or another seed than an adapter
was given: it is refused, it goes on as it was, or it goes on with what the adapter was given."""
