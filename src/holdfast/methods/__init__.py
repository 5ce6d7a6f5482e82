"""One readable file per method."""

from holdfast.methods.base import Method
from holdfast.methods.batchnorm import AlphaBatchNorm, BatchNorm
from holdfast.methods.cmf import CMF
from holdfast.methods.cotta import CoTTA
from holdfast.methods.deyo import DeYO
from holdfast.methods.eata import EATA
from holdfast.methods.eta import ETA
from holdfast.methods.lame import LAME
from holdfast.methods.law import LAW
from holdfast.methods.memo import MEMO
from holdfast.methods.palm import PALM
from holdfast.methods.roid import ROID
from holdfast.methods.rpl import RPL
from holdfast.methods.sar import SAR
from holdfast.methods.source import Source
from holdfast.methods.tent import Tent
from holdfast.step import Objective, Step

__all__ = [
    "CMF",
    "EATA",
    "ETA",
    "LAME",
    "LAW",
    "MEMO",
    "PALM",
    "ROID",
    "RPL",
    "SAR",
    "AlphaBatchNorm",
    "BatchNorm",
    "CoTTA",
    "DeYO",
    "Method",
    "Objective",
    "Source",
    "Step",
    "Tent",
]
