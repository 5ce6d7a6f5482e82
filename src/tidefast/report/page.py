"""The page: one file that needs nothing else."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

from tidefast.core.files import write_atomically
from tidefast.report import curves, floor, heatmap
from tidefast.report.data import ReportData, Sample, Thumbnails
from tidefast.report.headline import conclusions, headline, rule
from tidefast.report.markup import Markup, data, element, join

if TYPE_CHECKING:
    from PIL.Image import Image


RELIABILITY = (
    "The accuracy of answers (coloured) against the probability that they were given with; faint strokes: their share "
    "of all answers. On the dotted line a probability means what it says; below it the model is too sure of itself."
)


def render(content: ReportData) -> str:
    """The page as text."""
    plots: curves.Plots = {}
    sections = [
        _fallen(content),
        section("Results", rule(content), headline(content)),
        section(
            "Accuracy over time",
            f"Mean over {content.window} batches around each. Dotted: chance. Under the curves, a stroke for each "
            "reset. Point at the chart to read values; the buttons hide and show.",
            curves.accuracy(content, plots),
        ),
        _grid_section(
            "Concentration against its threshold",
            "ASR resets when the concentration of a batch's predictions (coloured) exceeds its long-term average (the "
            "plain line), which then starts anew. The strokes mark the batches after which that happened.",
            curves.concentration(content, plots),
        ),
        _grid_section(
            "What other policies measure",
            f"{' '.join(_described(content))} Coloured: what is measured; plain lines: what it is compared with. The "
            "strokes mark the batches after which there was a reset.",
            curves.measurements(content, plots),
        ),
        _grid_section(
            "How deep each reset went",
            "The share of layers that returned to the source, counted from the output. RDumb always takes all; ASR "
            "takes more the further the concentration is above its threshold.",
            curves.depth(content, plots),
        ),
        _grid_section("Confidence against accuracy", RELIABILITY, curves.reliability(content, plots)),
        _grid_section(
            "What was predicted",
            "The share of each class among the predictions, over time. Compare with the true labels: a "
            "contestant whose errors add up puts everything into a few rows.",
            heatmap.panels(content, plots),
            heatmap.scale(),
        ),
        _grid_section(
            "The stream", "A few images along the way, as the network saw them.", _samples(content), style="film"
        ),
        section("How it was made", "", _facts(content)) if content.facts else Markup(""),
    ]
    return document(
        content.title,
        [_partial(content), _conclusions(content)],
        [part for part in sections if part],
        plots,
    )


def _fallen(content: ReportData) -> Markup:
    lowest = floor.floor_of(content)
    if lowest is None or not floor.fates(content):
        return Markup("")
    return section(
        "Who fell, when, and who held",
        f"Along the stream, from left to right; red where a contestant is more than {100 * floor.MARGIN:.0f} points "
        f"below {lowest.label}, which learns nothing (mean over {content.window} batches).",
        floor.strips(content),
    )


def _described(content: ReportData) -> list[str]:
    """What the contestants' measurements are, each once."""
    return list(dict.fromkeys(what.description for history in content.histories for what in history.measures.values()))


def document(title: str, opening: Sequence[Markup], sections: Sequence[Markup], plots: curves.Plots) -> str:
    """A whole page: a header with its title, the sections, and the values that its charts read out."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(_asset("style.css"))),
    )
    main = element("main", element("header", element("h1", title), *opening), *sections)
    script = element("script", Markup(_asset("script.js")))
    return "<!doctype html>\n" + element("html", head, element("body", main, data(plots, "plots"), script), lang="en")


def write(content: ReportData, path: str | os.PathLike[str]) -> None:
    """Write the page; it replaces an earlier one whole or not at all."""
    write_atomically(path, render(content).encode())


def contact_sheet(images: Thumbnails, columns: int) -> Image:
    """Images [n, height, width, 3] side by side in rows of `columns`; what is missing in the last row stays black."""
    from PIL import Image

    count, height, width, _ = images.shape
    whole = Image.new("RGB", (columns * width, -(-count // columns) * height))
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        whole.paste(Image.fromarray(image), (column * width, row * height))
    return whole


def png_address(picture: Image) -> str:
    """A picture as an address that needs no request."""
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _asset(name: str) -> str:
    return resources.files("tidefast.report").joinpath(name).read_text(encoding="utf-8")


def section(title: str, note: str, *content: Markup) -> Markup:
    """A part of the page under a heading."""
    return element("section", element("h2", title), *([element("p", note, class_="note")] if note else []), *content)


def _grid_section(title: str, note: str, panels: list[Markup], *extra: Markup, style: str = "grid") -> Markup:
    if not panels:
        return Markup("")
    return section(title, note, *extra, element("div", join(panels), class_=style))


def _partial(content: ReportData) -> Markup:
    if content.complete:
        return Markup("")
    reached = ", ".join(f"{history.label} {history.batches:,} of {history.total:,}" for history in content.histories)
    return element(
        "p", f"Partial results: not everybody has seen the whole stream. Batches so far: {reached}.", class_="partial"
    )


def _conclusions(content: ReportData) -> Markup:
    lines = [line for line in conclusions(content) if not line.startswith("Partial")]
    return element("ul", *(element("li", line) for line in lines), class_="conclusions") if lines else Markup("")


def _samples(content: ReportData) -> list[Markup]:
    return [_sample(sample) for sample in content.samples]


def _sample(sample: Sample) -> Markup:
    sheet = contact_sheet(sample.images, columns=2)
    picture = element(
        "img",
        src=png_address(sheet),
        alt=f"Batch {sample.step}, {sample.domain}: {', '.join(sample.labels)}",
        width=sheet.width,
        height=sheet.height,
    )
    caption = element(
        "figcaption", element("b", f"batch {sample.step:,}"), element("span", sample.domain.replace("_", " "))
    )
    return element("figure", picture, caption)


def _facts(content: ReportData) -> Markup:
    rows = [part for name, value in content.facts.items() for part in (element("dt", name), element("dd", value))]
    return element("dl", *rows)
