"""From results to something to look at: summaries, figures as SVG, and one self-contained HTML page."""

from typing import TYPE_CHECKING

from tidefast.core.on_demand import on_demand

if TYPE_CHECKING:  # what `_WHERE` says, for those who only read
    from tidefast.report.data import Sample, Story, Track, track_of
    from tidefast.report.headline import Standing, conclusions, percent, standings
    from tidefast.report.page import render, write

_WHERE = {
    "Sample": "data:Sample",
    "Standing": "headline:Standing",
    "Story": "data:Story",
    "Track": "data:Track",
    "conclusions": "headline:conclusions",
    "percent": "headline:percent",
    "render": "page:render",
    "standings": "headline:standings",
    "track_of": "data:track_of",
    "write": "page:write",
}
"""On demand, because published tables are shown without runs, and so without what reads them (extra `bench`)."""

__getattr__, __dir__ = on_demand(__name__, _WHERE)

__all__ = [
    "Sample",
    "Standing",
    "Story",
    "Track",
    "conclusions",
    "percent",
    "render",
    "standings",
    "track_of",
    "write",
]
