"""Which classes a contestant predicts, along the stream: a few of them for everything, where errors have added up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tidefast.bench import metrics
from tidefast.bench.metrics import Counts, Floats
from tidefast.report import curves
from tidefast.report.data import ReportData
from tidefast.report.markup import Markup, element, join

BINS = 72
LEVELS = 24


def panels(content: ReportData, plots: curves.Plots) -> list[Markup]:
    """One heatmap for the true labels, and one for each contestant."""
    if not content.started:
        return []
    longest = max(content.started, key=lambda history: history.batches)
    drawn = [_panel(content, "truth", "true labels", None, longest.labels, plots)]
    for history in content.started:
        drawn.append(
            _panel(content, history.key, history.label, curves.slot(content, history), history.predicted, plots)
        )
    return drawn


def shares(counts: Counts, total: int) -> tuple[Floats, list[int]]:
    """Class shares [classes, bins] of counts [batches, classes], and the bins' edges as batch numbers."""
    edges = np.unique(np.linspace(0, total, min(BINS, total) + 1).round().astype(int))
    edges = np.append(edges[edges < len(counts)], len(counts))
    sums = np.stack([counts[low:high].sum(axis=0) for low, high in pairwise(edges.tolist())], axis=1)
    return sums / np.maximum(1, sums.sum(axis=0)), edges.tolist()


def scale() -> Markup:
    """The key to the colours."""
    steps = [element("i", style=f"opacity:{_opacity(level):.3f}") for level in range(LEVELS + 1)]
    bar = element("i", join(steps), class_="ramp", aria_hidden="true")
    return element("p", "share of the predictions:", element("span", "0 % ", bar, " 100 %"), class_="key")


def _panel(content: ReportData, key: str, label: str, slot: str | None, counts: Counts, plots: curves.Plots) -> Markup:
    values, edges = shares(counts, content.total)
    classes = len(values)
    name = f"heat-{key}"
    plots[name] = {
        "edges": edges,
        "total": content.total,
        "classes": list(content.classes),
        "shares": [[round(1000 * float(value)) for value in row] for row in values],
    }
    spread = metrics.effective_classes(counts[metrics.last_quarter(len(counts))])
    drawing = element(
        "svg",
        *_cells(values, edges),
        viewbox=f"0 0 {content.total} {classes}",
        preserveaspectratio="none",
        role="img",
        aria_label=f"{label}: share of each class over time. In the last quarter as if {spread:.1f} classes were used.",
    )
    names = element("div", *(element("span", name) for name in content.classes), class_="rows", aria_hidden="true")
    ticks = [
        element("span", label, class_="xtick", style=f"left:{100 * tick / content.total:.2f}%")
        for tick, label in curves.x_ticks(content)
    ]
    plot = element(
        "div",
        drawing,
        element("div", join(ticks), class_="ticks", aria_hidden="true"),
        element("div", class_="readout", hidden=True, role="status"),
        class_="plot heat",
        tabindex="0",
        role="group",
        aria_label=f"Predictions of {label} over time. Arrow keys read values.",
        data_plot=name,
        style=f"--rows:{classes}",
    )
    swatch = [] if slot is None else [element("span", class_=f"swatch {slot}", aria_hidden="true")]
    note = element("small", f"{spread:.1f} classes in use in the last quarter")
    heading = element("h3", *swatch, label, note)
    return element("div", heading, element("div", names, plot, class_="heatbox"), class_="panel")


def _cells(values: Floats, edges: list[int]) -> list[Markup]:
    """The cells, gathered by their level of colour: one path for each."""
    levels = np.rint(values * LEVELS).astype(int)
    drawn = []
    for level in range(1, LEVELS + 1):
        rows, bins = np.nonzero(levels == level)
        path = "".join(
            f"M{edges[b]} {row}h{edges[b + 1] - edges[b]}v1h-{edges[b + 1] - edges[b]}z"
            for row, b in zip(rows, bins, strict=True)
        )
        if path:
            drawn.append(element("path", d=path, class_="cell", fill_opacity=f"{_opacity(level):.3f}"))
    return drawn


def _opacity(level: int) -> float:
    return float((level / LEVELS) ** 0.8)
