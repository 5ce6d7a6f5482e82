"""Accuracy matrices of any model on any labelled images: what calibrated CCC streams are made from."""

from tidefast.calibration.measure import CalibrationError, measure
from tidefast.calibration.summary import PathSummary, summarize

__all__ = ["CalibrationError", "PathSummary", "measure", "summarize"]
