"""The headline numbers of each contestant, the table of them, and the sentence or two that they amount to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tidefast.bench import metrics
from tidefast.report import curves, floor
from tidefast.report.data import ContestantHistory, ReportData
from tidefast.report.markup import Markup, element

REFERENCE, HOLDING, FADING, COLLAPSED, UNKNOWN = "reference", "holding", "fading", "collapsed", "too early to tell"
_RULE = (
    "Quarters are of the batches that a contestant has seen. The lead is its accuracy minus that of the model "
    "that does not adapt, on the same batches, in percentage points. Collapsed: below that model over all batches "
    "seen. Fading: in the last quarter {}. Holding: neither."
)
HEADINGS = (
    ("contestant", ""),
    ("overall", "accuracy over all batches seen, %"),
    ("last quarter", "accuracy in the last quarter of the batches seen, %"),
    ("lead over source", "in percentage points: first quarter → last quarter"),
    ("verdict", "see the rule under the table"),
    ("resets", "how many, and how many batches there are for each"),
    ("depth", "share of the layers that a reset takes, on average"),
    ("classes in use", "exp of the entropy of the predictions in the last quarter"),
    ("ms / batch", "median time of a predicting and adapting call in its worker process"),
)
PARTIAL = ("batches", "how far it got, of how many")


@dataclass(frozen=True)
class HeadlineRow:
    """One row of the headline table; accuracies are shares, nan where there is nothing to measure."""

    key: str
    label: str
    batches: int
    total: int
    overall: float
    last_quarter: float
    lead: float
    """Over the reference, over all batches seen; then in the first and in the last quarter."""
    first_lead: float
    last_lead: float
    resets: int
    mean_depth: float
    classes_in_use: float
    """exp of the entropy of the predictions of the last quarter: 1 when one class takes all."""
    milliseconds: float
    """Median of an adapting call."""
    verdict: str

    @property
    def lead_text(self) -> str:
        """The lead over the reference in the first and in the last quarter."""
        if math.isnan(self.first_lead) or math.isnan(self.last_lead):
            return "-"
        return f"{100 * self.first_lead:+.1f} → {100 * self.last_lead:+.1f}"

    @property
    def resets_text(self) -> str:
        """How many, and the gap between them."""
        gap = metrics.batches_per_reset(self.batches, self.resets)
        return f"{self.resets:,}" if math.isnan(gap) else f"{self.resets:,} (every {gap:,.0f})"


def headline_rows(content: ReportData) -> list[HeadlineRow]:
    """One row for each contestant, in the order of the content."""
    reference = next((history for history in content.histories if history.key == content.reference), None)
    return [_standing(history, reference, floor.floor_of(content)) for history in content.histories]


def rule(content: ReportData) -> str:
    """How verdicts are found."""
    lowest = floor.floor_of(content)
    if lowest is None:
        return _RULE.format("less than half of the first quarter's lead is left")
    return _RULE.format(f"more than {100 * floor.MARGIN:.0f} points below {lowest.label}")


def conclusions(content: ReportData) -> list[str]:
    """What the numbers say, in sentences; nothing that they do not."""
    rows = headline_rows(content)
    lines = floor.sentences(content)
    for row in rows:
        if row.verdict == COLLAPSED:
            lines.append(
                f"{row.label} collapsed: {percent(row.overall)} % (the model that does not adapt: "
                f"{percent(row.overall - row.lead)} %); {percent(row.last_quarter)} % in its last quarter, with "
                f"{row.classes_in_use:.1f} of {len(content.classes)} classes in use."
            )
        elif row.verdict == FADING and floor.floor_of(content) is None:
            lines.append(
                f"{row.label} is fading: its lead over the model that does not adapt went from "
                f"{100 * row.first_lead:.1f} to {100 * row.last_lead:.1f} points."
            )
    whole = [row for row in rows if row.batches == row.total]
    if len(whole) > 1:
        best = max(whole, key=lambda row: row.overall)
        near = _undecided(content, best, whole)
        but = f"; undecided against {', '.join(near)} (intervals of 95 %)" if near else ""
        lines.append(f"Best over the whole stream, in this one run: {best.label}, {percent(best.overall)} %{but}.")
    if not content.complete:
        behind = ", ".join(f"{row.label} {row.batches}" for row in rows if row.batches < row.total)
        lines.append(f"Partial results; batches seen of {content.total}: {behind}.")
    return lines


def _undecided(content: ReportData, best: HeadlineRow, rows: Sequence[HeadlineRow]) -> list[str]:
    """Whom the interval of the paired difference does not tell from the best on this stream."""
    histories = {history.key: history for history in content.histories}
    return [
        row.label
        for row in rows
        if row is not best and histories[best.key].over(histories[row.key]).verdict == "undecided"
    ]


def percent(share: float) -> str:
    """A share as a percentage, without the sign.

    >>> percent(0.5454), percent(float("nan"))
    ('54.5', '-')
    """
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def _standing(
    history: ContestantHistory, reference: ContestantHistory | None, lowest: ContestantHistory | None
) -> HeadlineRow:
    length = history.batches
    first, last = metrics.first_quarter(length), metrics.last_quarter(length)
    lead, first_lead, last_lead = (_lead(history, reference, part) for part in (slice(0, length), first, last))
    over_floor = 0.0 if history is lowest else _lead(history, lowest, last)
    verdict = _verdict(length, lead, first_lead, last_lead, over_floor)
    depths = history.reset_fraction[history.resets]
    return HeadlineRow(
        key=history.key,
        label=history.label,
        batches=length,
        total=history.total,
        overall=history.overall,
        last_quarter=history.accuracy(last),
        lead=lead,
        first_lead=first_lead,
        last_lead=last_lead,
        resets=len(depths),
        mean_depth=float(depths.mean()) if len(depths) else float("nan"),
        classes_in_use=metrics.effective_classes(history.predicted[last]),
        milliseconds=1000 * metrics.seconds_per_batch(history.seconds),
        verdict=REFERENCE if history is reference else verdict,
    )


def _lead(history: ContestantHistory, reference: ContestantHistory | None, part: slice) -> float:
    if reference is None or reference is history or reference.batches < part.stop or history.batches == 0:
        return float("nan")
    return history.accuracy(part) - reference.accuracy(part)


def _verdict(length: int, lead: float, first: float, last: float, over_floor: float) -> str:
    if length < 8 or math.isnan(first) or math.isnan(last):
        return UNKNOWN
    if metrics.collapsed(lead, 0.0):
        return COLLAPSED
    fading = last < first / 2 if math.isnan(over_floor) else over_floor < -floor.MARGIN
    return FADING if fading else HOLDING


def headline(content: ReportData) -> Markup:
    """One row for each contestant; the best accuracies among those that saw the whole stream stand out."""
    rows = headline_rows(content)
    whole = [row for row in rows if row.batches == row.total] if content.complete else []
    best = max((row.overall for row in whole), default=math.nan), max((r.last_quarter for r in whole), default=math.nan)
    headings = HEADINGS if content.complete else (HEADINGS[0], PARTIAL, *HEADINGS[1:])
    head = element("tr", *(element("th", name, scope="col", title=title or None) for name, title in headings))
    body = [_row(content, row, best) for row in rows]
    explanation = (
        "Accuracy in percent; everybody saw the same batches in the same order. "
        "Times depend on what else the machine does."
    )
    caption = element("caption", element("span", explanation))
    return element(
        "div",
        element("table", caption, element("thead", head), element("tbody", *body)),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="Results",
    )


def _row(content: ReportData, row: HeadlineRow, best: tuple[float, float]) -> Markup:
    history = next(history for history in content.histories if history.key == row.key)
    swatch = element("span", class_=f"swatch {curves.slot(content, history)}", aria_hidden="true")
    return element(
        "tr",
        element("th", swatch, row.label, scope="row"),
        *([] if content.complete else [element("td", f"{row.batches:,} of {row.total:,}")]),
        element("td", _emphasised(percent(row.overall), row.overall == best[0])),
        element("td", _emphasised(percent(row.last_quarter), row.last_quarter == best[1])),
        element("td", row.lead_text),
        element("td", element("span", row.verdict, class_=f"verdict {row.verdict.split()[0]}")),
        element("td", row.resets_text),
        element("td", "-" if math.isnan(row.mean_depth) else f"{row.mean_depth:.0%}"),
        element("td", "-" if math.isnan(row.classes_in_use) else f"{row.classes_in_use:.1f} of {len(content.classes)}"),
        element("td", "-" if math.isnan(row.milliseconds) else f"{row.milliseconds:.0f}"),
    )


def _emphasised(content: str, emphasis: bool) -> Markup:
    return element("strong", content) if emphasis else element("span", content)
