"""How contestants look: colours of their own, and a dash or a marker where that does not tell them apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tidefast.paper import figure
from tidefast.paper.naming import NO_RESET

_KNOWN = {"Source": figure.GREY, "BatchNorm": figure.INK, NO_RESET: figure.ORANGE, "RDumb": figure.RED}
_KNOWN |= {"ASR": figure.BLUE, **dict.fromkeys(("ETA", "EATA", "ROID", "CMF", "PeTTA", "Tent"), figure.ORANGE)}
"""The colours of those the paper is about, the same in every figure."""


def colour(label: str, other: str = figure.BLUE) -> str:
    """The colour of a contestant or a reset policy; `other` where it has none of its own.

    >>> colour("ETA + ASR") == colour("ROID + ASR, seed 43"), colour("ETA + RDumb") == colour("ETA + ASR")
    (True, False)
    """
    return _KNOWN.get(label.split(", ")[0].rpartition(" + ")[2], other)


def strokes(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each label what `Axes.plot` takes: colour and line style, no two alike up to eight per colour.

    >>> chosen = strokes(["ETA + ASR", "ROID + ASR", "ETA + RDumb"])
    >>> [one["color"] == figure.BLUE for one in chosen.values()], [one["linestyle"] for one in chosen.values()]
    ([True, True, False], ['-', '--', '-'])
    """
    own = {label: colour(label) for label in labels if colour(label, "")}
    unused = [one for one in figure.PALETTE if one not in own.values()] or figure.PALETTE
    free = sorted(unused, key=lambda one: one in _KNOWN.values())
    others = [label for label in labels if label not in own]
    colours = own | {label: free[at % len(free)] for at, label in enumerate(others)}
    used: dict[str, int] = {}
    chosen = {}
    for label in dict.fromkeys(labels):
        at = used.get(colours[label], 0)
        used[colours[label]] = at + 1
        chosen[label] = {"color": colours[label], "linestyle": figure.DASHES[at % len(figure.DASHES)]}
    return chosen


def marked(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For lines of few points: the colours of `strokes`, and for each label a dash and a marker."""
    return {
        label: {**stroke, "linestyle": dash, "marker": marker}
        for (label, stroke), dash, marker in zip(
            strokes(labels).items(), itertools.cycle(figure.DASHES), itertools.cycle(figure.MARKERS), strict=False
        )
    }
