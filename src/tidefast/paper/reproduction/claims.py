"""What the paper says about a table, as comparisons that numbers can be held against."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

NOISE = 0.5
"""Points within which two accuracies are not told apart."""
Values = Mapping[tuple[str, str], float]
"""By the name of a row and the key of a column."""


@dataclass(frozen=True)
class Claim:
    """A row is above others in a column. Without `below`: above all the others."""

    above: str
    below: tuple[str, ...] = ()
    column: str = "mean"


@dataclass(frozen=True)
class Verdict:
    """How a claim fares: by how much the row is above the best of the others that were measured."""

    claim: Claim
    margin: float | None
    measured: int
    asked: int
    noise: float = NOISE

    @property
    def said(self) -> str:
        """In words.

        >>> Verdict(Claim("a", ("b",)), -0.2, 1, 1).said
        'undecided (within 0.5)'
        """
        if self.margin is None:
            return "not measured"
        if abs(self.margin) < self.noise:
            return f"undecided (within {self.noise:g})"
        return "holds" if self.margin > 0 else "does not hold"


def judge(
    claims: Sequence[Claim],
    values: Values,
    rows: Sequence[str],
    noise: Callable[[str], float | None] = lambda key: NOISE,
) -> list[Verdict]:
    """Hold claims against numbers. `rows`: the names of all rows; `noise`: that of a column.

    >>> claim = Claim("ASR", ("RDumb",))
    >>> [one.said for one in judge([claim], {("ASR", "mean"): 40.0, ("RDumb", "mean"): 38.0}, ["ASR", "RDumb"])]
    ['holds']
    """
    return [_judged(claim, values, rows, noise(claim.column) or NOISE) for claim in claims]


def _judged(claim: Claim, values: Values, rows: Sequence[str], noise: float) -> Verdict:
    others = claim.below or tuple(row for row in rows if row != claim.above)
    there = [values[other, claim.column] for other in others if (other, claim.column) in values]
    own = values.get((claim.above, claim.column))
    margin = own - max(there) if own is not None and there else None
    return Verdict(claim, margin, len(there), len(others), noise)


@dataclass(frozen=True)
class Agreement:
    """Of the pairs of rows that differ by more than noise in both, how many are in the same order in both."""

    same: int = 0
    pairs: int = 0

    @property
    def share(self) -> float | None:
        """None when there is no such pair."""
        return self.same / self.pairs if self.pairs else None

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(self.same + other.same, self.pairs + other.pairs)


def agreement(ours: Mapping[str, float], theirs: Mapping[str, float], noise: float = NOISE) -> Agreement:
    """Agreement of the order of rows, given the numbers of those that have both.

    >>> agreement({"a": 3.0, "b": 2.0, "c": 1.0}, {"a": 30.0, "b": 10.0, "c": 20.0})
    Agreement(same=2, pairs=3)
    >>> agreement({"a": 3.0, "b": 2.9}, {"a": 30.0, "b": 10.0})
    Agreement(same=0, pairs=0)
    """
    same = pairs = 0
    for one, other in itertools.combinations([name for name in ours if name in theirs], 2):
        here, there = ours[one] - ours[other], theirs[one] - theirs[other]
        if min(abs(here), abs(there)) >= noise:
            pairs += 1
            same += (here > 0) == (there > 0)
    return Agreement(same, pairs)
