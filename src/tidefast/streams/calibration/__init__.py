"""Accuracy matrices of any model on any labelled images: what calibrated CCC streams are made from."""

from tidefast.streams.calibration.measure import CalibrationError, measure
from tidefast.streams.calibration.summary import PathSummary, summarize

__all__ = ["CalibrationError", "PathSummary", "measure", "summarize"]
