"""Who fell, when, and who held: each contestant against one that learns nothing, in one look."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidefast.report import curves
from tidefast.report.axes import SIZE
from tidefast.report.data import ContestantHistory, ReportData
from tidefast.report.markup import Markup, element

MARGIN = 0.05
"""So far below the floor is fallen; less may be the noise of a few hundred images."""


@dataclass(frozen=True, eq=False)
class Fate:
    """What became of a contestant."""

    history: ContestantHistory
    below: npt.NDArray[np.bool_]
    """[batches]: whether its accuracy around there was more than `MARGIN` below the floor's."""

    @property
    def fell(self) -> int | None:
        """The batch, counted from 1, from which on it was below; None when it is not at its end."""
        if not self.below.any() or not self.below[-1]:
            return None
        held = np.flatnonzero(~self.below)
        return int(held[-1]) + 2 if len(held) else 1

    @property
    def said(self) -> str:
        """In a few words."""
        if self.fell is not None:
            return f"fell at batch {self.fell:,}"
        return f"held, below for {self.below.mean():.0%} of the way" if self.below.any() else "held"


def floor_of(content: ReportData) -> ContestantHistory | None:
    """The contestant that nobody should be worse than, if it is there."""
    return next((history for history in content.started if history.key == content.floor), None)


def fates(content: ReportData) -> list[Fate]:
    """Of all contestants that learn, as far as the floor is known."""
    floor = floor_of(content)
    if floor is None:
        return []
    level = floor.smooth_accuracy(content.window)
    return [
        Fate(history, history.smooth_accuracy(content.window)[: len(level)] < level[: history.batches] - MARGIN)
        for history in content.started
        if history.key not in (content.reference, content.floor)
    ]


def sentences(content: ReportData) -> list[str]:
    """Who fell, who held."""
    floor = floor_of(content)
    told = fates(content)
    fallen = sorted((fate for fate in told if fate.fell is not None), key=lambda fate: fate.fell or 0)
    held = [fate.history.label for fate in told if fate.fell is None]
    lines = [f"{fate.history.label} {fate.said}, below {floor.label if floor else ''}." for fate in fallen]
    return [*lines, *([f"Held to the end: {'; '.join(held)}."] if held else [])]


def strips(content: ReportData) -> Markup:
    """A bar for each contestant along the stream, in its colour where it holds and marked where it has fallen."""
    rows = []
    for fate in fates(content):
        edges = np.flatnonzero(np.diff(fate.below.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
        spans = [(0, len(fate.below), f"held {curves.slot(content, fate.history)}")]
        spans += [(int(first), int(last), "fallen") for first, last in edges]
        drawing = element(
            "svg",
            *(_bar(content, *span) for span in spans),
            viewbox=f"0 0 {SIZE} {SIZE}",
            preserveaspectratio="none",
            role="img",
            aria_label=f"{fate.history.label}: {fate.said}",
        )
        verdict = element("b", fate.said, class_="collapsed" if fate.fell is not None else "holding")
        rows.append(element("div", element("span", fate.history.label, " ", verdict), drawing, class_="strip fate"))
    return element("div", *rows, class_="figure")


def _bar(content: ReportData, first: int, last: int, class_: str) -> Markup:
    left, right = (SIZE * edge / max(1, content.total) for edge in (first, last))
    return element("rect", x=f"{left:.1f}", y="0", width=f"{right - left:.1f}", height=str(SIZE), class_=class_)
