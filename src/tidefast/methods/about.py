"""What pages and lists say of a method beyond its code: where it comes from, its equation, what it adapts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal[
    "Without gradients",
    "Entropy",
    "Weighted and averaged",
    "With a teacher",
    "Domains",
    "Vision transformers",
    "Others",
]
"""Under which heading the site lists a method; in this order."""


@dataclass(frozen=True)
class Paper:
    """Where a method was published.

    >>> print(Paper("Wang and others", "Tent: Fully Test-Time Adaptation by Entropy Minimization", "ICLR 2021"))
    Wang and others, "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021
    """

    authors: str
    title: str
    venue: str
    code: str = ""
    """The repository of the released code on GitHub, owner/name."""

    def __str__(self) -> str:
        return f'{self.authors}, "{self.title}", {self.venue}'


@dataclass(frozen=True)
class About:
    """The class variable `about` of a method: its page is made of this, of its settings and of its docstring."""

    title: str
    """The name as people write it, and as results label it."""
    adapts: str
    """In a few words, such as "scale and shift"."""
    equation: str = ""
    """In TeX; a blank line begins another one."""
    family: Family = "Others"
    paper: Paper | None = None
    needs: str = ""
    """What it asks of the network or the images, such as "a linear classifier head"; source data is `needs_source`."""
    cost: str = ""
    """What `passes` does not tell, such as passes that only some batches need."""
