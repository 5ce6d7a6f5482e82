"""What came of labels that were given for some images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Feedback:
    """What labels said, and what was decided.

    >>> Feedback(labels=8, better=3, worse=1, evidence=2.5, needed=33.0, serves="reference", changed=False).better
    3
    """

    labels: int
    """How many came."""
    better: int
    """Of them those for which only the adapted network is right."""
    worse: int
    """And those for which only the reference is; all others tell nothing."""
    evidence: float
    """For whoever does not answer, after these labels; 1 at the beginning."""
    needed: float
    """The evidence at which that changes."""
    serves: Literal["adapted", "reference"]
    """Who answers from now on."""
    changed: bool
    """Whether these labels changed it."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values, for a log line or an answer."""
        return asdict(self)
