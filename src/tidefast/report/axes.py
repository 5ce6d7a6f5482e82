"""The frame that every chart shares: a stretchable drawing with text beside it that keeps its size.

The drawing is an SVG of 1000 by 1000 units that fills its box whatever the shape of that; tick labels are HTML placed
by percentages. So a chart is legible on a telephone and on a wide screen, without a script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidefast.bench.metrics import Floats
from tidefast.report.markup import Markup, element, join

SIZE = 1000


@dataclass(frozen=True)
class Axes:
    """Ranges of the data, and where a value lies in the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, values: Floats | Sequence[float]) -> Floats:
        """Horizontal positions."""
        return SIZE * (np.asarray(values, float) - self.x[0]) / (self.x[1] - self.x[0])

    def down(self, values: Floats | Sequence[float]) -> Floats:
        """Vertical positions: 0 is the top."""
        return SIZE * (1.0 - (np.asarray(values, float) - self.y[0]) / (self.y[1] - self.y[0]))

    def line(self, x: Floats | Sequence[float], y: Floats, **attributes: str) -> Markup:
        """A line through the points, broken where a value is nan."""
        commands, pen = [], "M"
        for across, down in zip(self.across(x), self.down(y), strict=True):
            if math.isnan(down):
                pen = "M"
                continue
            commands.append(f"{pen}{across:.1f} {down:.1f}")
            pen = "L"
        return element("path", d="".join(commands), **{"class_": "line", **attributes})

    def stems(self, x: Floats | Sequence[float], y: Floats, **attributes: str) -> Markup:
        """A vertical stroke from the bottom up to each point."""
        tops = self.down(np.clip(y, *self.y))
        strokes = [f"M{across:.1f} {SIZE}V{top:.1f}" for across, top in zip(self.across(x), tops, strict=True)]
        return element("path", d="".join(strokes), **{"class_": "stems", **attributes})

    def level(self, y: float, class_: str) -> Markup:
        """A horizontal line across the whole drawing."""
        return element("path", d=f"M0 {float(self.down([y])[0]):.1f}H{SIZE}", class_=class_)

    def frame(
        self,
        marks: list[Markup],
        *,
        name: str,
        description: str,
        x_ticks: Sequence[tuple[float, str]],
        y_ticks: Sequence[tuple[float, str]],
        height: str = "tall",
    ) -> Markup:
        """The drawing with its tick labels; `name` ties it to its data for the script."""
        grid = [self.level(value, "gridline") for value, _ in y_ticks]
        labels = [
            element("span", label, class_="ytick", style=f"top:{float(self.down([value])[0]) / 10:.2f}%")
            for value, label in y_ticks
        ]
        labels += [
            element("span", label, class_="xtick", style=f"left:{float(self.across([value])[0]) / 10:.2f}%")
            for value, label in x_ticks
        ]
        drawing = element(
            "svg",
            *grid,
            *marks,
            viewbox=f"0 0 {SIZE} {SIZE}",
            preserveaspectratio="none",
            role="img",
            aria_label=description,
        )
        return element(
            "div",
            drawing,
            element("div", join(labels), class_="ticks", aria_hidden="true"),
            element("div", class_="cursor", hidden=True),
            element("div", class_="readout", hidden=True, role="status"),
            class_=f"plot {height}",
            tabindex="0",
            role="group",
            aria_label=f"{description} Arrow keys read values.",
            data_plot=name,
        )


def round_ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from low to high, about as many as asked.

    >>> round_ticks(0, 800, 4)
    [0.0, 200.0, 400.0, 600.0, 800.0]
    """
    if not high > low:
        return [low]
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * k, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]
