"""Figures along the stream: accuracy with reset marks, concentration against its threshold, depth of resets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidefast.bench.metrics import Counts, Floats
from tidefast.report.axes import SIZE, Axes, round_ticks
from tidefast.report.data import Story, Track
from tidefast.report.markup import Markup, element

POINTS = 600
"""At most so many points in an accuracy curve; a longer stream is thinned."""

Plots = dict[str, dict[str, Any]]
"""For the script: by the name of a plot, the values that it reads out."""


def accuracy(story: Story, plots: Plots, name: str = "accuracy", points: int = POINTS) -> Markup:
    """Accuracy over time, one line for each contestant, and under it the moments of the resets.

    On a page with several, each has its `name`, and `points` keeps the page small.
    """
    chance = 1.0 / max(1, len(story.classes))
    at = _evenly(max((track.batches for track in story.started), default=0), points)
    curves = {track.key: track.smooth_accuracy(story.window) for track in story.started}
    top = max([0.2, chance, *(float(curve.max()) for curve in curves.values())])
    axes = Axes((1, max(2, story.total)), (0.0, min(1.0, np.ceil(top * 10 + 0.2) / 10)))
    marks, series = [axes.level(chance, "chance")], []
    for track in story.started:
        chosen = at[at < track.batches]
        values = curves[track.key][chosen]
        marks.append(axes.line(_number(chosen), values, class_=f"line {slot(story, track)}", data_track=track.key))
        series.append(_series(story, track, track.label, values, "percent"))
    plots[name] = {
        "x": (at + 1).tolist(),
        "series": series,
        "domains": _domains(story, at),
        "total": story.total,
        "toggles": True,
    }
    ticks = [(tick, f"{100 * tick:.0f} %") for tick in round_ticks(*axes.y, 5)]
    description = f"Accuracy over time, mean over {story.window} batches, of {len(series)} contestants."
    plot = axes.frame(marks, name=name, description=description, x_ticks=x_ticks(story), y_ticks=ticks)
    return element("div", _legend(story), plot, *_reset_strips(story, axes, points), class_="figure")


def concentration(story: Story, plots: Plots) -> list[Markup]:
    """For each contestant that measures it: C_t, the threshold it is compared with, and the resets that follow."""
    return [
        _compared(story, track, {"concentration": track.concentration, "threshold": track.threshold}, plots)
        for track in story.started
        if track.measures_concentration
    ]


def measurements(story: Story, plots: Plots) -> list[Markup]:
    """For each contestant whose policy measures something else: that, and the resets that follow."""
    return [_compared(story, track, values, plots) for track in story.started for values in track.compared]


def _compared(story: Story, track: Track, values: Mapping[str, Floats], plots: Plots) -> Markup:
    """The first of the values, in the contestant's colour, against the others, and the resets that follow."""
    first, *others = values
    lead = values[first]
    at = _widest(lead - values[others[0]] if others else lead)
    shown = {name: of_all[at] for name, of_all in values.items()}
    low, high = float(np.nanmin([*shown.values()])), float(np.nanmax([*shown.values()]))
    margin = 0.06 * (high - low) or 0.1
    axes = Axes((1, max(2, story.total)), (low - margin, high + margin))
    over = at[track.reset_fraction[at] > 0]
    marks = [
        axes.stems(_number(over), lead[over], class_="stems faint"),
        *(axes.line(_number(at), shown[other], class_="line threshold") for other in others),
        axes.line(_number(at), shown[first], class_=f"line thin {slot(story, track)}"),
    ]
    name = f"{first}-{track.key}"
    plots[name] = {
        "x": (at + 1).tolist(),
        "series": [
            _series(story, track, _words(first), shown[first], "plain"),
            *({"label": _words(o), "slot": "ink", "unit": "plain", "y": _plain(shown[o])} for o in others),
            _series(story, track, "layers reset", track.reset_fraction[at], "percent"),
        ],
        "domains": _domains(story, at),
        "total": story.total,
    }
    ticks = [(tick, f"{tick:.2g}") for tick in round_ticks(*axes.y, 4)]
    against = f" against its {' and '.join(map(_words, others))}" if others else ""
    description = f"{_words(first).capitalize()} of {track.label}{against}; {len(track.resets)} resets."
    plot = axes.frame(marks, name=name, description=description, x_ticks=x_ticks(story), y_ticks=ticks, height="middle")
    return _panel(story, track, plot, "" if first == "concentration" else ", ".join(map(_words, values)))


def depth(story: Story, plots: Plots) -> list[Markup]:
    """For each contestant that was reset: a stroke at each reset, as high as the share of layers that it took."""
    panels = []
    for track in story.started:
        at = track.resets
        if not len(at):
            continue
        axes = Axes((1, max(2, story.total)), (0.0, 1.0))
        fractions = track.reset_fraction[at]
        name = f"depth-{track.key}"
        plots[name] = {
            "x": (at + 1).tolist(),
            "series": [_series(story, track, "layers reset", fractions, "percent")],
            "domains": _domains(story, at),
            "total": story.total,
        }
        ticks = [(tick, f"{100 * tick:.0f} %") for tick in (0.0, 0.5, 1.0)]
        description = (
            f"{track.label}: {len(at)} resets, taking {fractions.min():.0%} to {fractions.max():.0%} of the layers."
        )
        marks = [axes.stems(_number(at), fractions, class_=f"stems {slot(story, track)}")]
        plot = axes.frame(
            marks, name=name, description=description, x_ticks=x_ticks(story), y_ticks=ticks, height="low"
        )
        panels.append(_panel(story, track, plot, f"{len(at)} resets, {fractions.mean():.0%} of layers on average"))
    return panels


def slot(story: Story, track: Track) -> str:
    """The class that gives a contestant its colour and dashes."""
    return f"t{[other.key for other in story.tracks].index(track.key) % 12}"


def x_ticks(story: Story) -> list[tuple[float, str]]:
    """Round batch numbers, few enough for a telephone; the first says what they are."""
    ticks = [tick for tick in round_ticks(0, max(2, story.total), 4) if tick >= 1]
    return [(tick, f"{tick:,.0f}" if at else f"batch {tick:,.0f}") for at, tick in enumerate(ticks)]


def _legend(story: Story) -> Markup:
    buttons = [
        element(
            "button",
            element("span", class_=f"swatch {slot(story, track)}", aria_hidden="true"),
            track.label,
            type_="button",
            aria_pressed="true",
            data_toggle=track.key,
        )
        for track in story.started
    ]
    return element("div", *buttons, class_="legend", role="group", aria_label="Show or hide contestants")


def _reset_strips(story: Story, axes: Axes, points: int) -> list[Markup]:
    places = min(SIZE, 2 * points)  # more strokes than that would not be seen apart
    strips = []
    for track in story.started:
        if not len(track.resets):
            continue
        unit = Axes(axes.x, (0.0, 1.0))
        strokes = np.unique((unit.across(_number(track.resets)) * places / SIZE).round()) / places
        at = axes.x[0] + strokes * (axes.x[1] - axes.x[0])
        label = f"resets of {track.label}: {len(track.resets)}"
        drawing = element(
            "svg",
            unit.stems(at, np.ones(len(at)), class_=f"stems {slot(story, track)}"),
            viewbox="0 0 1000 1000",
            preserveaspectratio="none",
            role="img",
            aria_label=label,
        )
        strips.append(element("div", element("span", label), drawing, class_="strip", data_track=track.key))
    return strips


def _panel(story: Story, track: Track, plot: Markup, note: str = "") -> Markup:
    heading = element(
        "h3",
        element("span", class_=f"swatch {slot(story, track)}", aria_hidden="true"),
        track.label,
        *([element("small", note)] if note else []),
    )
    return element("div", heading, plot, class_="panel")


def _series(story: Story, track: Track, label: str, values: Floats, unit: str) -> dict[str, Any]:
    return {"key": track.key, "label": label, "slot": slot(story, track), "unit": unit, "y": _plain(values)}


def _number(at: Counts) -> Floats:
    """Batches as people count them, from 1."""
    return (at + 1).astype(np.float64)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _plain(values: Floats) -> list[float | None]:
    return [round(float(value), 4) if np.isfinite(value) else None for value in values]


def _domains(story: Story, at: Counts) -> list[str]:
    longest = max(story.started, key=lambda track: track.batches, default=None)
    return [] if longest is None else [longest.domains[index].replace("_", " ") for index in at]


def _evenly(length: int, points: int) -> Counts:
    """Positions spread over a range, first and last included."""
    return np.unique(np.linspace(0, max(0, length - 1), min(length, points)).round().astype(np.int64))


def _widest(excess: Floats) -> Counts:
    """Positions to show of a long line: of every few batches, those where the excess is largest and where it is
    smallest, so that neither a peak nor a restart of the threshold is lost."""
    length = len(excess)
    if length <= 2 * POINTS:
        return np.arange(length)
    filled = np.nan_to_num(excess, nan=0.0)
    parts = np.array_split(np.arange(length), POINTS)
    ends = [part[[np.argmin(filled[part]), np.argmax(filled[part])]] for part in parts]
    return np.unique(np.concatenate(ends))
