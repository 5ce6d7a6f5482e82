"""One file per reset policy."""

from tidefast.resets.ablations import ABLATIONS
from tidefast.resets.aetta import AETTA
from tidefast.resets.asr import ASR
from tidefast.resets.base import Reset, Verdict, registry
from tidefast.resets.confidence import Confidence
from tidefast.resets.distribution import Distribution
from tidefast.resets.guard import Guard
from tidefast.resets.never import Never
from tidefast.resets.periodic import Periodic

__all__ = ["ABLATIONS", "AETTA", "ASR", "Confidence", "Distribution", "Guard", "Never", "Periodic", "Reset", "Verdict"]

# A file that is not named above is found, registered and an attribute here all the same.
globals().update(registry.discover(__name__))
