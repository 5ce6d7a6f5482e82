"""How runs compare with others: by paired differences and their intervals, one rule for noise everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tidefast.bench import metrics
from tidefast.bench.metrics import PairedDifference
from tidefast.bench.results import Run
from tidefast.paper.naming import place
from tidefast.paper.study import accuracy
from tidefast.report import sheet


def over(runs: Sequence[Run], others: Sequence[Run]) -> PairedDifference:
    """By how many points finished runs are above others, on the streams and seeds that both have."""
    fellows = {place(run): run for run in others}
    levels: dict[str, list[metrics.StreamPair]] = {}
    for run in runs:
        if (other := fellows.get(place(run))) is not None:
            pair = metrics.StreamPair.of(accuracy(run) - accuracy(other), run.answers, other.answers)
            levels.setdefault(run.experiment.stream.spelled, []).append(pair)
    return metrics.paired_difference([*levels.values()])


def reach(difference: PairedDifference) -> tuple[float, float]:
    """How far the interval goes below and above the difference: an error bar; nothing where there is no interval.

    >>> reach(PairedDifference(2.0, 1.5, 3.0)), reach(PairedDifference(2.0))
    ((0.5, 1.0), (0.0, 0.0))
    """
    if math.isnan(difference.low):
        return 0.0, 0.0
    return max(0.0, difference.points - difference.low), max(0.0, difference.high - difference.points)


def told(difference: PairedDifference, decimals: int = 1) -> str:
    """A difference in a sentence: points and their interval, and whether it is undecided.

    >>> told(PairedDifference(1.4, 0.8, 2.0)), told(PairedDifference(0.42, -0.1, 0.9), 2), told(PairedDifference(1.4))
    ('+1.4 [+0.8, +2.0]', '+0.42 [-0.10, +0.90], undecided', '+1.4 without an interval, undecided')
    """
    cell = sheet.difference(difference, decimals)
    known = "" if cell.interval else " without an interval"
    return f"{cell.text}{known}{', undecided' if cell.undecided else ''}"


def counted(verdicts: Iterable[str], better: str = "above", worse: str = "below") -> str:
    """How many of some verdicts are which: `above`, `below` or `undecided`, the first two in words of the sentence.

    >>> counted(["above", "undecided", "above"]), counted(["below"], "better", "worse")
    ('above in 2, below in 0, undecided in 1', 'better in 0, worse in 1, undecided in 0')
    """
    all_of = [*verdicts]
    words = (("above", better), ("below", worse), ("undecided", "undecided"))
    return ", ".join(f"{word} in {all_of.count(verdict)}" for verdict, word in words)


WHISKERS = "Error bars in the figure: the interval of 95 % of the difference to {}."
"""A remark on a figure that has them."""


def over_all(differences: Iterable[PairedDifference]) -> str:
    """The verdict of one against several others: `above` all, `below` one of them, or `undecided`.

    >>> over_all([PairedDifference(2.0, 1.0, 3.0), PairedDifference(0.4, -0.1, 0.9)])
    'undecided'
    """
    verdicts = {difference.verdict for difference in differences}
    return "below" if "below" in verdicts else "above" if verdicts == {"above"} else "undecided"
