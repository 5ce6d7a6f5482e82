"""What the paper says about its tables, as comparisons that numbers can be held against."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

NOISE = 0.5
"""Points within which two accuracies are not told apart."""
CellNumbers = Mapping[tuple[str, str], float]
"""By the name of a row and the key of a column."""


@dataclass(frozen=True)
class Claim:
    """A row is above others in a column. Without `below`: above all the others."""

    above: str
    below: tuple[str, ...] = ()
    column: str = "mean"


@dataclass(frozen=True)
class ClaimVerdict:
    """How a claim fares: by how much the row is above the best of the others that were measured."""

    claim: Claim
    margin: float | None
    measured: int
    asked: int
    noise: float = NOISE

    @property
    def said(self) -> str:
        """In words.

        >>> ClaimVerdict(Claim("a", ("b",)), -0.2, 1, 1).said
        'undecided (within 0.5)'
        """
        if self.margin is None:
            return "not measured"
        if abs(self.margin) < self.noise:
            return f"undecided (within {self.noise:g})"
        return "holds" if self.margin > 0 else "does not hold"


def judge(
    claims: Sequence[Claim],
    values: CellNumbers,
    rows: Sequence[str],
    noise: Callable[[str], float | None] = lambda key: NOISE,
) -> list[ClaimVerdict]:
    """Hold claims against numbers. `rows`: the names of all rows; `noise`: that of a column.

    >>> claim = Claim("ASR", ("RDumb",))
    >>> [one.said for one in judge([claim], {("ASR", "mean"): 40.0, ("RDumb", "mean"): 38.0}, ["ASR", "RDumb"])]
    ['holds']
    """
    return [_judged(claim, values, rows, noise(claim.column) or NOISE) for claim in claims]


def _judged(claim: Claim, values: CellNumbers, rows: Sequence[str], noise: float) -> ClaimVerdict:
    others = claim.below or tuple(row for row in rows if row != claim.above)
    there = [values[other, claim.column] for other in others if (other, claim.column) in values]
    own = values.get((claim.above, claim.column))
    margin = own - max(there) if own is not None and there else None
    return ClaimVerdict(claim, margin, len(there), len(others), noise)


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


_LEVELS = ("easy", "medium", "hard")
_FIRST = "speed1000_seed43"


def _over_resets(*bases: str, column: str = "mean") -> tuple[Claim, ...]:
    """ASR above its base, and above RDumb on it."""
    return tuple(Claim(f"{base} + ASR", (base, f"{base} + RDumb"), column) for base in bases)


def _each(above: str, *below: str, columns: tuple[str, ...] = _LEVELS) -> tuple[Claim, ...]:
    return tuple(Claim(above, below, column) for column in columns)


def _add_ons(base: str) -> tuple[Claim, ...]:
    others = (base, *(f"{base} + {add_on}" for add_on in ("RDumb", "COME", "ReservoirTTA")))
    return (
        Claim(f"{base} + ASR", others),
        Claim(f"{base} + ASR", others, "hard"),
        Claim(f"{base} + RDumb", (f"{base} + COME",)),
    )


def _fixed(what: str, *values: str) -> tuple[str, ...]:
    return tuple(f"ROID + ASR with fixed {what.format(value)}" for value in values)


_INTERVALS = _fixed("interval T={} batches", "1000", "10000", "20000", "50000")
_SHARES = _fixed("share {}%", "20", "50", "80", "100")
_DELAYS = tuple(f"{{}} + ASR, delayed reset (epsilon {value})" for value in ("0.001", "0.01"))

CLAIMS: dict[int, tuple[Claim, ...]] = {
    1: tuple(claim for base in ("ETA", "EATA", "ROID") for claim in _add_ons(base)),
    2: (*_over_resets("ROID", "CMF", "PeTTA"), Claim("ROID + ASR", ("CMF + ASR", "PeTTA + ASR"))),
    3: (
        Claim("ROID + ASR"),
        Claim("ROID + ASR", (), "hard"),
        *_each("Source", "CMF", "REM", columns=("hard",)),
        *_each("Source", "C-MAE", columns=("easy",)),
    ),
    4: (
        *_each("ROID + ASR", columns=("ccc_hard", "cin_c_iid", "cin_c_noniid", "in_c_visit20", "in_c_mean")),
        *_each("ROID", "ROID + RDumb", columns=("ccc_easy", "ccc_medium")),
        Claim("ROID + RDumb", ("ROID",), "ccc_hard"),
        Claim("ROID + ASR", ("ROID + RDumb",), "in_d109_mean"),
    ),
    5: (
        Claim("ROID + ASR"),
        *(
            Claim(f"ROID + ASR w/o {part}", ("ROID + ASR w/o C_t, mu_0", "ROID + ASR w/o r_t"))
            for part in ("F_bar", "lambda_0", "mu_0")
        ),
    ),
    6: (
        *_over_resets("ETA", "ROID", column="original"),
        *_over_resets("ETA", "ROID", column="modified"),
        Claim("ETA + RDumb", ("ETA",), "modified"),
    ),
    7: (
        *_over_resets("ETA", "ROID", column="original"),
        *_over_resets("ETA", "ROID", column="modified"),
        Claim("ROID + RDumb", ("ROID",), "original"),
        Claim("ROID", ("ROID + RDumb",), "modified"),
    ),
    8: (Claim("None", (), "pearson"), Claim("Top-1", ("Top-10%",), "pearson")),
    9: tuple(
        claim
        for base in ("ETA", "ROID")
        for claim in (
            Claim(f"{base} + ASR", tuple(delay.format(base) for delay in _DELAYS)),
            Claim(_DELAYS[0].format(base), (_DELAYS[1].format(base),)),
            *((Claim("ETA", (_DELAYS[1].format("ETA"),)),) if base == "ETA" else ()),
        )
    ),
    10: (Claim("ROID + ASR", (), "accuracy"),),
    **{
        number: tuple(
            Claim(f"{base} + ASR", (f"{base} + ASR w/o knowledge recovery",), column)
            for base in ("ETA", "ROID")
            for column in ("visit10", "visit20", "mean")
        )
        for number in (11, 12)
    },
    13: _each(
        "ROID + ASR", columns=tuple(f"speed{speed}_seed{seed}" for speed in (1000, 2000, 5000) for seed in (43, 44, 45))
    ),
    16: (Claim("ROID + ASR", _INTERVALS), Claim("ROID + ASR", _INTERVALS, "hard")),
    17: (
        Claim("ROID + ASR", _SHARES),
        Claim(_SHARES[1], (_SHARES[0], *_SHARES[2:])),
    ),
    18: (
        Claim("ROID + ASR (reset only)"),
        *_each("ROID + ASR (reset only)"),
        *(Claim(f"ROID + {rule} reset", ("ROID",), "hard") for rule in ("RDumb", "DA-TTA")),
        Claim("ROID", ("ROID + RDumb reset", "ROID + DA-TTA reset"), "easy"),
    ),
    19: (Claim("ROID + ASR", ("ROID + ASR, CMA only",)),),
    20: (Claim("lambda_0*phi_t^2", (), "hard"), Claim("lambda_0*phi_t^2")),
    21: (Claim("1-mu_0*(1-phi_t)", (), "hard"), Claim("1-mu_0*(1-phi_t)")),
    **{number: (*_over_resets("ETA", "ROID"), *_over_resets("ETA", "ROID", column="visit20")) for number in (22, 23)},
    24: (*_over_resets("ROID", column="batch4"), Claim("ROID + ASR", ("ROID + RDumb",), "batch2")),
    27: (*_over_resets("ETA", "ROID", column="easy"), *_over_resets("ETA", "ROID", column="medium")),
    **{number: _over_resets("ETA", "EATA", "ROID", "CMF", "PeTTA", column=_FIRST) for number in (28, 29, 30)},
    **{number: (Claim("ROID + ASR"), *_over_resets("ETA", "ROID")) for number in (31, 32, 33)},
    34: _over_resets("ETA", "ROID"),
    **{number: _over_resets("ETA", "ROID", column=_FIRST) for number in (35, 36, 37)},
}
"""By the number of a table; rows and columns by the paper's names."""
