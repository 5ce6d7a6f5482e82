"""What the paper says about its tables, as comparisons that numbers can be held against."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidefast.bench.metrics import PairedDifference

CellNumbers = Mapping[tuple[str, str], float]
"""By the name of a row and the key of a column."""
Compare = Callable[[str, str, str], PairedDifference]
"""By how much a row is above another in a column: their names, and its key."""


@dataclass(frozen=True)
class Claim:
    """A row is above others in a column. Without `below`: above all the others."""

    above: str
    below: tuple[str, ...] = ()
    column: str = "mean"


@dataclass(frozen=True)
class ClaimVerdict:
    """How a claim fares: by how much the row is above each of the others that were measured."""

    claim: Claim
    differences: tuple[PairedDifference, ...]
    asked: int

    @property
    def nearest(self) -> PairedDifference | None:
        """To the best of the others."""
        return min(self.differences, key=lambda difference: difference.points, default=None)

    @property
    def margin(self) -> float | None:
        """To the best of the others, in points."""
        return None if self.nearest is None else self.nearest.points

    @property
    def measured(self) -> int:
        """How many of the others were."""
        return len(self.differences)

    @property
    def in_words(self) -> str:
        """In words: it holds when every interval is above 0, and does not when one is below.

        >>> differences = (PairedDifference(2.0, 1.0, 3.0), PairedDifference(0.4, -0.1, 0.9))
        >>> [ClaimVerdict(Claim("a"), some, 2).in_words for some in (differences, differences[:1], ())]
        ['undecided', 'holds', 'not measured']
        """
        verdicts = [difference.verdict for difference in self.differences]
        if not verdicts:
            return "not measured"
        if "below" in verdicts:
            return "does not hold"
        return "undecided" if "undecided" in verdicts else "holds"


def judge(
    claims: Sequence[Claim], values: CellNumbers, rows: Sequence[str], compare: Compare | None = None
) -> list[ClaimVerdict]:
    """Hold claims against numbers. `rows`: the names of all rows; without `compare`, margins that nothing is known of.

    >>> claim = Claim("ASR", ("RDumb",))
    >>> [verdict] = judge([claim], {("ASR", "mean"): 40.0, ("RDumb", "mean"): 38.0}, ["ASR", "RDumb"])
    >>> verdict.margin
    2.0
    """

    def margin(above: str, below: str, column: str) -> PairedDifference:
        return PairedDifference(values[above, column] - values[below, column])

    verdicts = []
    for claim in claims:
        others = claim.below or tuple(row for row in rows if row != claim.above)
        there = [other for other in others if (other, claim.column) in values]
        there = there if (claim.above, claim.column) in values else []
        differences = tuple((compare or margin)(claim.above, other, claim.column) for other in there)
        verdicts.append(ClaimVerdict(claim, differences, len(others)))
    return verdicts


@dataclass(frozen=True)
class Agreement:
    """Of the pairs of rows that are decided here and differ there, how many are in the same order in both."""

    same: int = 0
    pairs: int = 0

    @property
    def share(self) -> float | None:
        """None when there is no such pair."""
        return self.same / self.pairs if self.pairs else None

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(self.same + other.same, self.pairs + other.pairs)


def agreement(
    ours: Sequence[str], theirs: Mapping[str, float], compare: Callable[[str, str], PairedDifference]
) -> Agreement:
    """Agreement of the order of rows, given the names of ours, their numbers, and how two of ours compare.

    >>> ours = {"a": 3.0, "b": 2.0, "c": 1.0}
    >>> sure = lambda row, other: PairedDifference(d := ours[row] - ours[other], d - 0.1, d + 0.1)
    >>> agreement([*ours], {"a": 30.0, "b": 10.0, "c": 20.0}, sure)
    Agreement(same=2, pairs=3)
    """
    same = pairs = 0
    for row, other in itertools.combinations([name for name in ours if name in theirs], 2):
        verdict, there = compare(row, other).verdict, theirs[row] - theirs[other]
        if verdict != "undecided" and there != 0:
            pairs += 1
            same += (verdict == "above") == (there > 0)
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
