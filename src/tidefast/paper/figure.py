"""One look for all figures: sizes, type and colours that print, project and survive colour blindness."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidefast.core.files import write_atomically
from tidefast.errors import how_to_install
from tidefast.paper.naming import NO_RESET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")
COLUMN, PAGE = 3.4, 7.0
"""Widths in inches of one column, and of a page of two."""
# The palette of Okabe and Ito, told apart under every common colour blindness, without its yellow: too faint a line.
INK, ORANGE, SKY, GREEN, BLUE, RED, PINK = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#7F7F7F"
PALETTE = (BLUE, RED, GREEN, ORANGE, PINK, SKY, INK, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)), "-")
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.color": "#DDDDDD",
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "tidefast",
}
_KNOWN = {"Source": GREY, "BatchNorm": INK, NO_RESET: ORANGE, "RDumb": RED, "RDumb (matched)": PINK}
_KNOWN |= {"ASR": BLUE, **dict.fromkeys(("ETA", "EATA", "ROID", "CMF", "PeTTA", "Tent"), ORANGE)}
"""The colours of those the paper is about, the same in every figure."""


def look() -> AbstractContextManager[None]:
    """Within it, everything that is drawn and saved has the look of our figures."""
    context: AbstractContextManager[None] = _matplotlib().rc_context(_STYLE)
    return context


def panels(
    rows: int = 1, columns: int = 1, *, width: float = PAGE, height: float = 2.2, **options: Any
) -> tuple[Figure, Any]:
    """A figure and its axes [rows, columns], each row `height` inches high; `options` go to `Figure.subplots`."""
    _matplotlib()
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height * rows), layout="constrained")
    return drawn, drawn.subplots(rows, columns, squeeze=False, **options)


def letter(axes: Sequence[Axes]) -> None:
    """Mark panels a, b, c."""
    for at, axis in enumerate(axes):
        axis.set_title("abcdefghijkl"[at], loc="left", fontweight="bold")


def legend(drawn: Figure, axes: Iterable[Axes]) -> None:
    """One legend for all panels, below them."""
    handles = {}
    for axis in axes:
        handles.update({label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)})
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)))


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure in every format, whole or not at all; the same figure gives the same bytes."""
    written = []
    for format_ in FORMATS:
        sink = io.BytesIO()
        dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[format_]
        figure.savefig(sink, format=format_, dpi=200, metadata=dates)
        path = stem.with_name(f"{stem.name}.{format_}")
        write_atomically(path, sink.getvalue())
        written.append(path)
    return written


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(f"figures need matplotlib: {how_to_install('figures')}") from error
    return matplotlib


def colour(label: str, other: str = BLUE) -> str:
    """The colour of a contestant or a reset policy; `other` where it has none of its own.

    >>> colour("ETA + ASR") == colour("ROID + ASR, seed 43"), colour("ETA + RDumb") == colour("ETA + ASR")
    (True, False)
    """
    return _KNOWN.get(label.split(", ")[0].rpartition(" + ")[2], other)


def line_styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each label what `Axes.plot` takes: colour and line style, no two alike up to eight per colour.

    >>> chosen = line_styles(["ETA + ASR", "ROID + ASR", "ETA + RDumb"])
    >>> [style["color"] == BLUE for style in chosen.values()], [style["linestyle"] for style in chosen.values()]
    ([True, True, False], ['-', '--', '-'])
    """
    own = {label: colour(label) for label in labels if colour(label, "")}
    unused = [candidate for candidate in PALETTE if candidate not in own.values()] or PALETTE
    free = sorted(unused, key=lambda candidate: candidate in _KNOWN.values())
    others = [label for label in labels if label not in own]
    colours = own | {label: free[at % len(free)] for at, label in enumerate(others)}
    used: dict[str, int] = {}
    chosen = {}
    for label in dict.fromkeys(labels):
        at = used.get(colours[label], 0)
        used[colours[label]] = at + 1
        chosen[label] = {"color": colours[label], "linestyle": DASHES[at % len(DASHES)]}
    return chosen


def marked(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For lines of few points: the colours of `line_styles`, and for each label a dash and a marker."""
    return {
        label: {**stroke, "linestyle": dash, "marker": marker}
        for (label, stroke), dash, marker in zip(
            line_styles(labels).items(), itertools.cycle(DASHES), itertools.cycle(MARKERS), strict=False
        )
    }
