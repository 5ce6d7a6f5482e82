"""Bring the figures and tables of docs/methods up to date with the results of benchmarks/methods.yaml.

python benchmarks/collect.py runs/methods > benchmarks/results/methods.csv
python benchmarks/method_pages.py
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidefast.report.axes import SIZE, Axes
from tidefast.report.markup import Markup, element

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "methods.csv"
PAGES = ROOT / "docs" / "methods"
FIGURES = ROOT / "docs" / "images" / "methods"
INDEX = ROOT / "docs" / "methods.md"
LEVELS = ("easy", "medium", "hard")
BEGIN, END = "<!-- from benchmarks/method_pages.py -->", "<!-- end -->"
COLOURS = ("#56b4e9", "#0072b2", "#d55e00", "#009e73", "#cc79a7")
WIDTH, HEIGHT = 240, 150

CONTESTANTS: Mapping[str, Sequence[str]] = {
    "source": ("Source",),
    "batchnorm": ("BatchNorm", "AlphaBatchNorm"),
    "tent": ("Tent",),
    "eta": ("ETA", "ETA + RDumb", "ETA + ASR"),
    "eata": ("EATA", "EATA + RDumb", "EATA + ASR"),
    "sar": ("SAR",),
    "roid": ("ROID", "ROID + RDumb", "ROID + ASR"),
    "cmf": ("CMF", "CMF + RDumb", "CMF + ASR"),
    "come": ("Tent + COME", "ETA + COME", "EATA + COME", "ROID + COME"),
    "law": ("LAW",),
    "palm": ("PALM",),
    "cotta": ("CoTTA",),
    "petal": ("PETAL",),
    "rmt": ("RMT", "RMT source-free"),
    "santa": ("SANTA",),
    "rotta": ("RoTTA",),
    "petta": ("PeTTA", "PeTTA + RDumb", "PeTTA + ASR"),
    "dplot": ("DPLOT",),
    "vida": ("ViDA",),
    "datta": ("DATTA", "ROID + Distribution"),
    "reservoir": ("Reservoir (ETA)", "Reservoir (EATA)", "Reservoir (ROID)"),
    "lame": ("LAME",),
    "memo": ("MEMO",),
    "rpl": ("RPL",),
    "deyo": ("DeYO",),
    "cmae": ("CMAE",),
    "rem": ("REM",),
}
"""What each page shows, by the labels of the contestants."""
ON_VIT = ("cmae", "rem")
BATCHES = {"ViDA": 250, "PETAL": 250, "REM": 250, "CMAE": 250, "MEMO": 25}
"""Contestants on shorter streams than the others' 1,000 batches."""


@dataclass(frozen=True)
class Result:
    """One contestant on one level: means over seeds, in percent."""

    accuracy: float
    last_quarter: float
    resets: float
    tenths: tuple[float, ...]


Results = Mapping[tuple[str, int, str, str], Result]
"""By network, batches, level and label."""


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


def batches_of(labels: Sequence[str]) -> int:
    """The length of the streams that contestants share."""
    return BATCHES.get(labels[-1], 1000)


def network(page: str) -> str:
    """The network that a page's contestants adapt."""
    return "bundled-vit" if page in ON_VIT else "bundled-resnet"


def contestants(page: str) -> list[str]:
    """Those of a page, and before them what they are measured by."""
    reference = ["Source"] if page in ON_VIT else ["Source", "BatchNorm"]
    return [*(label for label in reference if label not in CONTESTANTS[page]), *CONTESTANTS[page]]


def section(page: str, results: Results) -> str:
    """The part of a page about the benchmark."""
    chosen, model = contestants(page), network(page)
    batches = batches_of(chosen)
    lines = [
        f"![Accuracy along the stream](../images/methods/{page}.svg)",
        "",
        f"Accuracy on [`ccc-mini`](../ccc.md), {model}, {batches:,} batches of 16, in %; in brackets that of",
        "the last quarter, then the resets. [All methods, and how they were run](../methods.md).",
        "",
        *table(chosen, model, results, resets=True),
    ]
    return "\n".join(lines)


def table(chosen: Sequence[str], model: str, results: Results, *, resets: bool = False) -> Iterator[str]:
    """Rows of Markdown, one for each contestant."""
    yield f"| contestant | Easy | Medium | Hard | mean |{' resets |' if resets else ''}"
    yield f"| --- | ---: | ---: | ---: | ---: |{' ---: |' if resets else ''}"
    for label in chosen:
        batches = batches_of(chosen if resets or model == "bundled-vit" else [label])
        found = [results[model, batches, level, label] for level in LEVELS]
        source = [results[model, batches, level, "Source"] for level in LEVELS]
        cells = [
            f"{one.accuracy:.1f} ({one.last_quarter:.1f}){'†' if one.accuracy < own.accuracy else ''}"
            for one, own in zip(found, source, strict=True)
        ]
        mean = statistics.fmean(one.accuracy for one in found)
        numbers = f" {statistics.fmean(one.resets for one in found):.0f} |" if resets else ""
        note = "" if resets or model == "bundled-vit" or batches == 1000 else f" ({batches} batches)"
        yield f"| {label}{note} | {' | '.join(cells)} | {mean:.1f} |{numbers}"


def figure(page: str, results: Results) -> str:
    """Accuracy in each tenth of the stream, a panel for each level, as SVG."""
    chosen, model = contestants(page), network(page)
    colours = iter(COLOURS)
    strokes = {label: "#999999" if label == "Source" else next(colours) for label in chosen}
    axes = Axes((0.5, 10.5), (0.0, 100.0))
    panels = [_panel(axes, level, column, strokes, model, results) for column, level in enumerate(LEVELS)]
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


def _panel(axes: Axes, level: str, column: int, strokes: Mapping[str, str], model: str, results: Results) -> Markup:
    marks = []
    for percent in (0, 25, 50, 75, 100):
        y = float(axes.down([percent])[0]) * HEIGHT / SIZE
        marks.append(element("path", d=f"M0 {y:.1f}H{WIDTH}", stroke="#dddddd", fill="none"))
        if column == 0:
            marks.append(element("text", f"{percent} %", x=-4, y=y + 3, font_size=9, text_anchor="end", fill="#666666"))
    for label, stroke in strokes.items():
        tenths = results[model, batches_of(list(strokes)), level, label].tenths
        across = axes.across([part + 1 for part in range(10)]) * WIDTH / SIZE
        down = axes.down(list(tenths)) * HEIGHT / SIZE
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
        marks.append(element("polyline", points=points, stroke=stroke, fill="none", stroke_width=1.8))
    marks.append(element("text", level.capitalize(), x=6, y=12, font_size=11, fill="#333333"))
    marks.append(element("text", "tenths of the stream", x=WIDTH / 2, y=HEIGHT + 14, font_size=9, text_anchor="middle"))
    return element("g", *marks, transform=f"translate({36 + column * (WIDTH + 10)} 8)")


def put(text: str, content: str) -> str:
    """The text of a page with `content` between the marks; they are added at the end where they are missing."""
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n## On the bundled benchmark\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{content}\n{END}{rest.split(END)[1]}"


def index(results: Results) -> str:
    """The table of all methods."""
    everyone = [label for page, labels in CONTESTANTS.items() if page not in ON_VIT for label in labels]
    on_vit = ["Source", *(label for page in ON_VIT for label in CONTESTANTS[page])]
    lines = [
        *table(everyone, "bundled-resnet", results),
        "",
        "On bundled-vit, 250 batches:",
        "",
        *table(on_vit, "bundled-vit", results),
    ]
    return "\n".join([*lines, "", "†: below the source model on the same stream"])


def texts(results: Results) -> dict[Path, str]:
    """Every file that this script keeps, as it should be."""
    files = {INDEX: put(INDEX.read_text(), index(results))}
    for page in CONTESTANTS:
        path = PAGES / f"{page}.md"
        files[path] = put(path.read_text(), section(page, results))
        files[FIGURES / f"{page}.svg"] = figure(page, results) + "\n"
    return files


def main() -> None:
    """Write them."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    for path, text in texts(read()).items():
        path.write_text(text)


if __name__ == "__main__":
    main()
