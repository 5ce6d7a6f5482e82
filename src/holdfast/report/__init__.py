"""From results to something to look at: summaries, figures as SVG, and one self-contained HTML page."""

from holdfast.report.page import render, write
from holdfast.report.standing import Standing, conclusions, percent, standings
from holdfast.report.story import Floats, Sample, Story, Track
from holdfast.report.tracks import track_of

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
