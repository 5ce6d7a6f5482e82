"""Accuracy matrices of any model on any labelled images: what calibrated CCC streams are made from."""

from holdfast.calibration.measure import CalibrationError, measure
from holdfast.calibration.summary import PathSummary, summarize

__all__ = ["CalibrationError", "PathSummary", "measure", "summarize"]
