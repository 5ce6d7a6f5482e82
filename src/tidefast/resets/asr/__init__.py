"""ASR, and the parts it is made of."""

from tidefast.resets.asr.accumulations import Accumulation
from tidefast.resets.asr.expressions import Momentum, Strength
from tidefast.resets.asr.extents import Extent
from tidefast.resets.asr.measures import Measure
from tidefast.resets.asr.policy import ASR
from tidefast.resets.asr.triggers import Trigger

__all__ = ["ASR", "Accumulation", "Extent", "Measure", "Momentum", "Strength", "Trigger"]
