"""The headline table."""

from __future__ import annotations

import math

from tidefast.report import curves
from tidefast.report.markup import Markup, element
from tidefast.report.standing import Standing, percent, standings
from tidefast.report.story import Story

HEADINGS = (
    ("contestant", ""),
    ("overall", "accuracy over all batches seen, %"),
    ("last quarter", "accuracy in the last quarter of the batches seen, %"),
    ("lead over source", "in percentage points: first quarter → last quarter"),
    ("verdict", "see the rule under the table"),
    ("resets", "how many"),
    ("depth", "share of the layers that a reset takes, on average"),
    ("classes in use", "exp of the entropy of the predictions in the last quarter"),
    ("ms / batch", "median time of a predicting and adapting call in its worker process"),
)
PARTIAL = ("batches", "how far it got, of how many")


def headline(story: Story) -> Markup:
    """One row for each contestant; the best accuracies among those that saw the whole stream stand out."""
    rows = standings(story)
    whole = [row for row in rows if row.batches == row.total] if story.complete else []
    best = max((row.overall for row in whole), default=math.nan), max((r.last_quarter for r in whole), default=math.nan)
    headings = HEADINGS if story.complete else (HEADINGS[0], PARTIAL, *HEADINGS[1:])
    head = element("tr", *(element("th", name, scope="col", title=title or None) for name, title in headings))
    body = [_row(story, row, best) for row in rows]
    said = (
        "Accuracy in percent; everybody saw the same batches in the same order. "
        "Times depend on what else the machine does."
    )
    caption = element("caption", element("span", said))
    return element(
        "div",
        element("table", caption, element("thead", head), element("tbody", *body)),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="Results",
    )


def _row(story: Story, row: Standing, best: tuple[float, float]) -> Markup:
    track = next(track for track in story.tracks if track.key == row.key)
    swatch = element("span", class_=f"swatch {curves.slot(story, track)}", aria_hidden="true")
    return element(
        "tr",
        element("th", swatch, row.label, scope="row"),
        *([] if story.complete else [element("td", f"{row.batches:,} of {row.total:,}")]),
        element("td", _emphasised(percent(row.overall), row.overall == best[0])),
        element("td", _emphasised(percent(row.last_quarter), row.last_quarter == best[1])),
        element("td", row.lead_text),
        element("td", element("span", row.verdict, class_=f"verdict {row.verdict.split()[0]}")),
        element("td", f"{row.resets:,}"),
        element("td", "-" if math.isnan(row.mean_depth) else f"{row.mean_depth:.0%}"),
        element("td", "-" if math.isnan(row.classes_in_use) else f"{row.classes_in_use:.1f} of {len(story.classes)}"),
        element("td", "-" if math.isnan(row.milliseconds) else f"{row.milliseconds:.0f}"),
    )


def _emphasised(content: str, emphasis: bool) -> Markup:
    return element("strong", content) if emphasis else element("span", content)
