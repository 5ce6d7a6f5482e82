"""From results to something to look at: summaries, figures as SVG, and one self-contained HTML page."""

from typing import TYPE_CHECKING

from tidefast.core.on_demand import on_demand

if TYPE_CHECKING:  # what `_WHERE` says, for those who only read
    from tidefast.report.data import ContestantHistory, ReportData, Sample, history_of
    from tidefast.report.headline import HeadlineRow, conclusions, headline_rows, percent
    from tidefast.report.page import render, write

_WHERE = {
    "Sample": "data:Sample",
    "HeadlineRow": "headline:HeadlineRow",
    "ReportData": "data:ReportData",
    "ContestantHistory": "data:ContestantHistory",
    "conclusions": "headline:conclusions",
    "percent": "headline:percent",
    "render": "page:render",
    "headline_rows": "headline:headline_rows",
    "history_of": "data:history_of",
    "write": "page:write",
}
"""On demand, because published tables are shown without runs, and so without what reads them (extra `bench`)."""

__getattr__, __dir__ = on_demand(__name__, _WHERE)

__all__ = [
    "ContestantHistory",
    "HeadlineRow",
    "ReportData",
    "Sample",
    "conclusions",
    "headline_rows",
    "history_of",
    "percent",
    "render",
    "write",
]
