"""From results to something to look at: summaries, figures as SVG, and one self-contained HTML page."""

from tidefast.report.data import Sample, Story, Track, track_of
from tidefast.report.headline import Standing, conclusions, percent, standings
from tidefast.report.page import render, write

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
