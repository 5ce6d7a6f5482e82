"""Tables and figures of the pages of methods, from the results of benchmarks/methods.yaml.

tidefast sweep benchmarks/methods.yaml --out runs/methods --jobs 2
python benchmarks/collect.py runs/methods > benchmarks/results/methods.csv
"""

from __future__ import annotations

import csv
import functools
import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidefast.report.axes import SIZE, Axes
from tidefast.report.markup import Markup, element

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "methods.csv"
LEVELS = ("easy", "medium", "hard")
YARDSTICKS = ("Source", "BatchNorm")
"""What every contestant is measured by."""
COLOURS = ("#56b4e9", "#0072b2", "#d55e00", "#009e73", "#cc79a7")
DASHES = ("none", "6 2", "2 2", "8 2 2 2", "1 3", "10 3")
"""Curves that lie on each other are told apart by these."""
WIDTH, HEIGHT = 240, 150


@dataclass(frozen=True)
class Result:
    """One contestant on one level: means over seeds, in percent."""

    accuracy: float
    last_quarter: float
    resets: float
    tenths: tuple[float, ...]


Results = Mapping[tuple[str, int, str, str], Result]
"""By network, batches, level and label."""


@functools.cache
def read(path: Path = RESULTS) -> Results:
    """The results as `collect.py` wrote them."""
    rows = defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            level = next(level for level in LEVELS if level in row["stream"])
            rows[row["model"], int(row["batches"]), level, row["contestant"]].append(row)
    return {key: _mean(group) for key, group in rows.items()}


def _mean(rows: list[dict[str, str]]) -> Result:
    def mean(name: str) -> float:
        return statistics.fmean(float(row[name]) for row in rows)

    tenths = tuple(mean(f"tenth {part + 1}") for part in range(10))
    return Result(mean("accuracy"), mean("last quarter"), mean("resets"), tenths)


@dataclass(frozen=True)
class Contest:
    """Contestants on one network, along streams of one length, with what they are measured by before them."""

    model: str
    batches: int
    labels: tuple[str, ...]
    results: Results

    @classmethod
    def of(cls, title: str, results: Results) -> Contest | None:
        """That of a method, alone, in its variants and with policies; None where it was not measured."""
        runs = sorted({key[:2] for key in results if key[3] in _labels(title, results)}, key=_preferred)
        if not runs:
            return None
        model, batches = runs[0]
        there = {key[3] for key in results if key[:2] == (model, batches)}
        own = [label for label in _labels(title, results) if label in there]
        before = [label for label in YARDSTICKS if label in there and label not in own]
        return cls(model, batches, (*before, *own), results)

    def levels(self, label: str) -> list[Result]:
        """Of one contestant, on each level."""
        return [self.results[self.model, self.batches, level, label] for level in LEVELS]

    def row(self, label: str) -> list[str]:
        """Accuracy on each level (that of the last quarter), marked where it is below the source, and the mean."""
        results = self.levels(label)
        cells = [
            f"{own.accuracy:.1f} ({own.last_quarter:.1f}){'†' if own.accuracy < source.accuracy else ''}"
            for own, source in zip(results, self.levels("Source"), strict=True)
        ]
        return [*cells, f"{statistics.fmean(result.accuracy for result in results):.1f}"]

    def resets(self, label: str) -> str:
        """How many on average, and how many batches lie between them."""
        count = statistics.fmean(result.resets for result in self.levels(label))
        return f"{count:.0f} (every {self.batches / count:.0f})" if count else "0"


def _labels(title: str, results: Results) -> list[str]:
    """The contestants of a method: its name comes first; those of COME, an objective, have it last."""
    labels = {key[3] for key in results}
    if title == "COME":
        return sorted(label for label in labels if label.endswith("+ COME"))
    own = [label for label in labels if (label == title or label.startswith(f"{title} ")) and "+ COME" not in label]
    return sorted(own)


def _preferred(run: tuple[str, int]) -> tuple[bool, int]:
    model, batches = run
    return model != "bundled-resnet", -batches


def section(title: str, figure_address: str, results: Results) -> str:
    """What a page shows of a method's results."""
    contest = Contest.of(title, results)
    if contest is None:
        return "Not measured."
    lines = [
        f"![Accuracy along the stream]({figure_address})",
        "",
        f"Accuracy on [`ccc-mini`](../ccc.md), {contest.model}, {contest.batches:,} batches of 16, in %; in brackets",
        "that of the last quarter, then the resets, and batches from one to the next.",
        "[All methods, and how they were run](../methods.md).",
        "",
        "| contestant | Easy | Medium | Hard | mean | resets |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for label in contest.labels:
        lines.append(f"| {' | '.join([label, *contest.row(label), contest.resets(label)])} |")
    return "\n".join(lines)


def overview(titles: Sequence[str], results: Results) -> str:
    """All results, network by network, in the order of the methods' titles."""
    contests = [contest for title in titles if (contest := Contest.of(title, results)) is not None]
    return "\n\n".join([*_networks(contests), "†: below the source model on the same stream"])


def _networks(contests: Sequence[Contest]) -> Iterator[str]:
    for model in dict.fromkeys(contest.model for contest in contests):
        lines = [f"On {model}:", "", "| contestant | batches | Easy | Medium | Hard | mean | resets |"]
        lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        seen: set[tuple[str, int]] = set()
        for contest in sorted(contests, key=lambda contest: -contest.batches):  # each length with its own yardsticks
            for label in contest.labels:
                if contest.model == model and (label, contest.batches) not in seen:
                    seen.add((label, contest.batches))
                    cells = [label, f"{contest.batches:,}", *contest.row(label), contest.resets(label)]
                    lines.append(f"| {' | '.join(cells)} |")
        yield "\n".join(lines)


def figure(contest: Contest) -> str:
    """Accuracy in each tenth of the stream, a panel for each level, as SVG."""
    colours = itertools.cycle(COLOURS)
    strokes = {label: "#999999" if label == "Source" else next(colours) for label in contest.labels}
    axes = Axes((0.5, 10.5), (0.0, 100.0))
    panels = [_panel(axes, column, strokes, contest) for column in range(len(LEVELS))]
    legend = [
        element("text", label, x=10 + 155 * place, y=HEIGHT + 42, fill=stroke, font_size=11, font_weight="bold")
        for place, (label, stroke) in enumerate(strokes.items())
    ]
    width = max(3 * (WIDTH + 10) + 40, 155 * len(strokes) + 20)
    height = HEIGHT + 52
    return element(
        "svg",
        element("rect", width=width, height=height, fill="#ffffff"),
        *panels,
        *legend,
        xmlns="http://www.w3.org/2000/svg",
        viewbox=f"0 0 {width} {height}",
        font_family="sans-serif",
        role="img",
        aria_label=f"Accuracy in each tenth of the stream: {', '.join(strokes)}",
    )


def _panel(axes: Axes, column: int, strokes: Mapping[str, str], contest: Contest) -> Markup:
    marks = []
    for percent in (0, 25, 50, 75, 100):
        y = float(axes.down([percent])[0]) * HEIGHT / SIZE
        marks.append(element("path", d=f"M0 {y:.1f}H{WIDTH}", stroke="#dddddd", fill="none"))
        if column == 0:
            marks.append(element("text", f"{percent} %", x=-4, y=y + 3, font_size=9, text_anchor="end", fill="#666666"))
    for (label, stroke), dash in zip(strokes.items(), itertools.cycle(DASHES), strict=False):
        tenths = contest.levels(label)[column].tenths
        across = axes.across([part + 1 for part in range(10)]) * WIDTH / SIZE
        down = axes.down(list(tenths)) * HEIGHT / SIZE
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
        marks.append(
            element("polyline", points=points, stroke=stroke, fill="none", stroke_width=1.8, stroke_dasharray=dash)
        )
        if column == len(LEVELS) - 1:  # a name at the end of each curve would overlap: a sample of its line instead
            at = 10 + 155 * list(strokes).index(label) - 36 - column * (WIDTH + 10)
            marks.append(
                element("path", d=f"M{at} {HEIGHT + 22}h40", stroke=stroke, stroke_width=1.8, stroke_dasharray=dash)
            )
    marks.append(element("text", LEVELS[column].capitalize(), x=6, y=12, font_size=11, fill="#333333"))
    marks.append(element("text", "tenths of the stream", x=WIDTH / 2, y=HEIGHT + 14, font_size=9, text_anchor="middle"))
    return element("g", *marks, transform=f"translate({36 + column * (WIDTH + 10)} 8)")
