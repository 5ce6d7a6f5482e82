"""One file per reset policy."""

from holdfast.resets.ablations import ABLATIONS
from holdfast.resets.asr import ASR
from holdfast.resets.base import Reset, Verdict
from holdfast.resets.confidence import Confidence
from holdfast.resets.distribution import Distribution
from holdfast.resets.never import Never
from holdfast.resets.periodic import Periodic

__all__ = ["ABLATIONS", "ASR", "Confidence", "Distribution", "Never", "Periodic", "Reset", "Verdict"]
