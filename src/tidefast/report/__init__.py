"""From results to something to look at: summaries, figures as SVG, and one self-contained HTML page."""

from tidefast.report.page import render, write
from tidefast.report.standing import Standing, conclusions, percent, standings
from tidefast.report.story import Floats, Sample, Story, Track
from tidefast.report.tracks import track_of

__all__ = [
    "Floats",
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
