"""One readable file per method."""

from holdfast.methods.base import Method
from holdfast.methods.batchnorm import AlphaBatchNorm, BatchNorm
from holdfast.methods.cmf import CMF
from holdfast.methods.eata import EATA
from holdfast.methods.eta import ETA
from holdfast.methods.roid import ROID
from holdfast.methods.sar import SAR
from holdfast.methods.source import Source
from holdfast.methods.tent import Tent
from holdfast.step import Objective, Step

__all__ = [
    "CMF",
    "EATA",
    "ETA",
    "ROID",
    "SAR",
    "AlphaBatchNorm",
    "BatchNorm",
    "Method",
    "Objective",
    "Source",
    "Step",
    "Tent",
]
