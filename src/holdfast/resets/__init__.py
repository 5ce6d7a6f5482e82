"""One file per reset policy."""

from holdfast.resets.asr import ASR
from holdfast.resets.base import Reset, Verdict
from holdfast.resets.confidence import Confidence
from holdfast.resets.never import Never
from holdfast.resets.periodic import Periodic

__all__ = ["ASR", "Confidence", "Never", "Periodic", "Reset", "Verdict"]
