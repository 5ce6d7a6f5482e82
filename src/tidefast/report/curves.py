"""Figures along the stream: accuracy with reset marks, concentration against its threshold, depth of resets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidefast.bench.metrics import Counts, Floats
from tidefast.report.axes import SIZE, Axes, round_ticks
from tidefast.report.data import ContestantHistory, ReportData
from tidefast.report.markup import Markup, element

POINTS = 600
"""At most so many points in an accuracy curve; a longer stream is thinned."""

Plots = dict[str, dict[str, Any]]
"""For the script: by the name of a plot, the values that it reads out."""


def accuracy(content: ReportData, plots: Plots, name: str = "accuracy", points: int = POINTS) -> Markup:
    """Accuracy over time, one line for each contestant, and under it the moments of the resets.

    On a page with several, each has its `name`, and `points` keeps the page small.
    """
    chance = 1.0 / max(1, len(content.classes))
    at = _evenly(max((history.batches for history in content.started), default=0), points)
    curves = {history.key: history.smooth_accuracy(content.window) for history in content.started}
    top = max([0.2, chance, *(float(curve.max()) for curve in curves.values())])
    axes = Axes((1, max(2, content.total)), (0.0, min(1.0, np.ceil(top * 10 + 0.2) / 10)))
    marks, series = [axes.level(chance, "chance")], []
    for history in content.started:
        chosen = at[at < history.batches]
        values = curves[history.key][chosen]
        marks.append(
            axes.line(_number(chosen), values, class_=f"line {slot(content, history)}", data_track=history.key)
        )
        series.append(_series(content, history, history.label, values, "percent"))
    plots[name] = {
        "x": (at + 1).tolist(),
        "series": series,
        "domains": _domains(content, at),
        "total": content.total,
        "toggles": True,
    }
    ticks = [(tick, f"{100 * tick:.0f} %") for tick in round_ticks(*axes.y, 5)]
    description = f"Accuracy over time, mean over {content.window} batches, of {len(series)} contestants."
    plot = axes.frame(marks, name=name, description=description, x_ticks=x_ticks(content), y_ticks=ticks)
    return element("div", _legend(content), plot, *_reset_strips(content, axes, points), class_="figure")


def concentration(content: ReportData, plots: Plots) -> list[Markup]:
    """For each contestant that measures it: C_t, the threshold it is compared with, and the resets that follow."""
    return [
        _compared(content, history, {"concentration": history.concentration, "threshold": history.threshold}, plots)
        for history in content.started
        if history.measures_concentration
    ]


def measurements(content: ReportData, plots: Plots, points: int | None = None) -> list[Markup]:
    """For each contestant whose policy measures something else: that, and the resets that follow."""
    return [
        _compared(content, history, values, plots, points) for history in content.started for values in history.compared
    ]


def _compared(
    content: ReportData,
    history: ContestantHistory,
    values: Mapping[str, Floats],
    plots: Plots,
    points: int | None = None,
) -> Markup:
    """The first of the values, in the contestant's colour, against the others, and the resets that follow."""
    first, *others = values
    lead = values[first]
    there = np.flatnonzero(np.isfinite(lead))  # a policy may measure now and then
    at = there[_widest((lead - values[others[0]] if others else lead)[there], points or POINTS)]
    shown = {name: of_all[at] for name, of_all in values.items()}
    low, high = float(np.nanmin([*shown.values()])), float(np.nanmax([*shown.values()]))
    margin = 0.06 * (high - low) or 0.1
    axes = Axes((1, max(2, content.total)), (low - margin, high + margin))
    over = at[history.reset_fraction[at] > 0]
    marks = [
        axes.stems(_number(over), lead[over], class_="stems faint"),
        *(axes.line(_number(at), shown[other], class_="line threshold") for other in others),
        axes.line(_number(at), shown[first], class_=f"line thin {slot(content, history)}"),
    ]
    name = f"{first}-{history.key}"
    plots[name] = {
        "x": (at + 1).tolist(),
        "series": [
            _series(content, history, _words(first), shown[first], "plain"),
            *({"label": _words(o), "slot": "ink", "unit": "plain", "y": _plain(shown[o])} for o in others),
            _series(content, history, "layers reset", history.reset_fraction[at], "percent"),
        ],
        "domains": _domains(content, at),
        "total": content.total,
    }
    ticks = [(tick, f"{tick:.2g}") for tick in round_ticks(*axes.y, 4)]
    against = f" against its {' and '.join(map(_words, others))}" if others else ""
    description = f"{_words(first).capitalize()} of {history.label}{against}; {len(history.resets)} resets."
    plot = axes.frame(
        marks, name=name, description=description, x_ticks=x_ticks(content), y_ticks=ticks, height="middle"
    )
    return _panel(content, history, plot, "" if first == "concentration" else ", ".join(map(_words, values)))


def depth(content: ReportData, plots: Plots) -> list[Markup]:
    """For each contestant that was reset: a stroke at each reset, as high as the share of layers that it took."""
    panels = []
    for history in content.started:
        at = history.resets
        if not len(at):
            continue
        axes = Axes((1, max(2, content.total)), (0.0, 1.0))
        fractions = history.reset_fraction[at]
        name = f"depth-{history.key}"
        plots[name] = {
            "x": (at + 1).tolist(),
            "series": [_series(content, history, "layers reset", fractions, "percent")],
            "domains": _domains(content, at),
            "total": content.total,
        }
        ticks = [(tick, f"{100 * tick:.0f} %") for tick in (0.0, 0.5, 1.0)]
        description = (
            f"{history.label}: {len(at)} resets, taking {fractions.min():.0%} to {fractions.max():.0%} of the layers."
        )
        marks = [axes.stems(_number(at), fractions, class_=f"stems {slot(content, history)}")]
        plot = axes.frame(
            marks, name=name, description=description, x_ticks=x_ticks(content), y_ticks=ticks, height="low"
        )
        panels.append(_panel(content, history, plot, f"{len(at)} resets, {fractions.mean():.0%} of layers on average"))
    return panels


def reliability(content: ReportData, plots: Plots, prefix: str = "") -> list[Markup]:
    """For each contestant: the accuracy of its answers against the confidence that they were given with."""
    panels, axes = [], Axes((0.0, 1.0), (0.0, 1.0))
    ticks = [(tick, f"{100 * tick:.0f} %") for tick in (0.0, 0.5, 1.0)]
    for history in content.started:
        kept = history.reliability
        if kept is None:
            continue
        some = kept.images > 0
        images, confidence = kept.images[some], kept.confidence[some] / kept.images[some]
        share = kept.correct[some] / images
        name = f"reliability-{prefix}{history.key}"
        plots[name] = {
            "x": _plain(1 + 100 * confidence),
            "titles": [f"confidence {100 * sure:.1f} %" for sure in confidence],
            "series": [
                _series(content, history, "accuracy", share, "percent"),
                {"label": "share of the answers", "slot": "ink", "unit": "percent", "y": _plain(images / kept.total)},
            ],
            "domains": [],
            "total": 101,
        }
        error = f"calibration error {100 * kept.error:.1f} %"
        marks = [
            axes.line([0.0, 1.0], np.array([0.0, 1.0]), class_="chance"),
            axes.stems(confidence, images / kept.total, class_="stems faint"),
            axes.line(confidence, share, class_=f"line {slot(content, history)}"),
        ]
        plot = axes.frame(
            marks,
            name=name,
            description=f"{history.label}: accuracy of its answers by their confidence; {error}.",
            x_ticks=[(0.0, "confidence 0 %"), *ticks[1:]],
            y_ticks=ticks,
            height="middle",
        )
        panels.append(_panel(content, history, plot, f"{error}, confidence {100 * kept.mean_confidence:.1f} %"))
    return panels


def slot(content: ReportData, history: ContestantHistory) -> str:
    """The class that gives a contestant its colour and dashes."""
    return f"t{[other.key for other in content.histories].index(history.key) % 12}"


def x_ticks(content: ReportData) -> list[tuple[float, str]]:
    """Round batch numbers, few enough for a telephone; the first says what they are."""
    ticks = [tick for tick in round_ticks(0, max(2, content.total), 4) if tick >= 1]
    return [(tick, f"{tick:,.0f}" if at else f"batch {tick:,.0f}") for at, tick in enumerate(ticks)]


def _legend(content: ReportData) -> Markup:
    buttons = [
        element(
            "button",
            element("span", class_=f"swatch {slot(content, history)}", aria_hidden="true"),
            history.label,
            type_="button",
            aria_pressed="true",
            data_toggle=history.key,
        )
        for history in content.started
    ]
    return element("div", *buttons, class_="legend", role="group", aria_label="Show or hide contestants")


def _reset_strips(content: ReportData, axes: Axes, points: int) -> list[Markup]:
    places = min(SIZE, 2 * points)  # more strokes than that would not be seen apart
    strips = []
    for history in content.started:
        if not len(history.resets):
            continue
        unit = Axes(axes.x, (0.0, 1.0))
        strokes = np.unique((unit.across(_number(history.resets)) * places / SIZE).round()) / places
        at = axes.x[0] + strokes * (axes.x[1] - axes.x[0])
        label = f"resets of {history.label}: {len(history.resets)}"
        drawing = element(
            "svg",
            unit.stems(at, np.ones(len(at)), class_=f"stems {slot(content, history)}"),
            viewbox="0 0 1000 1000",
            preserveaspectratio="none",
            role="img",
            aria_label=label,
        )
        strips.append(element("div", element("span", label), drawing, class_="strip", data_track=history.key))
    return strips


def _panel(content: ReportData, history: ContestantHistory, plot: Markup, note: str = "") -> Markup:
    heading = element(
        "h3",
        element("span", class_=f"swatch {slot(content, history)}", aria_hidden="true"),
        history.label,
        *([element("small", note)] if note else []),
    )
    return element("div", heading, plot, class_="panel")


def _series(content: ReportData, history: ContestantHistory, label: str, values: Floats, unit: str) -> dict[str, Any]:
    return {"key": history.key, "label": label, "slot": slot(content, history), "unit": unit, "y": _plain(values)}


def _number(at: Counts) -> Floats:
    """Batches as people count them, from 1."""
    return (at + 1).astype(np.float64)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _plain(values: Floats) -> list[float | None]:
    return [round(float(value), 4) if np.isfinite(value) else None for value in values]


def _domains(content: ReportData, at: Counts) -> list[str]:
    longest = max(content.started, key=lambda history: history.batches, default=None)
    return [] if longest is None else [longest.domains[index].replace("_", " ") for index in at]


def _evenly(length: int, points: int) -> Counts:
    """Positions spread over a range, first and last included."""
    return np.unique(np.linspace(0, max(0, length - 1), min(length, points)).round().astype(np.int64))


def _widest(excess: Floats, points: int) -> Counts:
    """Positions to show of a long line: of every few batches, those where the excess is largest and where it is
    smallest, so that neither a peak nor a restart of the threshold is lost."""
    length = len(excess)
    if length <= 2 * points:
        return np.arange(length)
    filled = np.nan_to_num(excess, nan=0.0)
    parts = np.array_split(np.arange(length), points)
    ends = [part[[np.argmin(filled[part]), np.argmax(filled[part])]] for part in parts]
    return np.unique(np.concatenate(ends))
