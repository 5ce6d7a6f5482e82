"""Lines that are told apart: the contestants' own colours, and a dash where two would have the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.studies import figure


def strokes(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each label what `Axes.plot` takes: colour and line style, no two alike up to eight per colour.

    >>> chosen = strokes(["ETA + ASR", "ROID + ASR", "ETA + RDumb"])
    >>> [one["color"] == figure.BLUE for one in chosen.values()], [one["linestyle"] for one in chosen.values()]
    ([True, True, False], ['-', '--', '-'])
    """
    # Two colours that differ for two positions are the palette's, not the contestant's own.
    own = {label: figure.colour(_contestant(label)) for label in labels if _has_own(label)}
    free = [one for one in figure.PALETTE if one not in own.values()] or list(figure.PALETTE)
    others = [label for label in labels if label not in own]
    colours = own | {label: free[at % len(free)] for at, label in enumerate(others)}
    used: dict[str, int] = {}
    chosen = {}
    for label in labels:
        at = used.get(colours[label], 0)
        used[colours[label]] = at + 1
        chosen[label] = {"color": colours[label], "linestyle": figure.DASHES[at % len(figure.DASHES)]}
    return chosen


def _contestant(label: str) -> str:
    return label.split(", ")[0]


def _has_own(label: str) -> bool:
    return figure.colour(_contestant(label), 0) == figure.colour(_contestant(label), 1)
