"""ASR, and the parts it is made of."""

from holdfast.resets.asr.accumulations import Accumulation
from holdfast.resets.asr.expressions import Momentum, Strength
from holdfast.resets.asr.extents import Extent
from holdfast.resets.asr.measures import Measure
from holdfast.resets.asr.policy import ASR
from holdfast.resets.asr.triggers import Trigger

__all__ = ["ASR", "Accumulation", "Extent", "Measure", "Momentum", "Strength", "Trigger"]
