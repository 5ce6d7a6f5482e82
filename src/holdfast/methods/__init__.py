"""One readable file per method."""

from holdfast.methods.base import Method
from holdfast.methods.batchnorm import AlphaBatchNorm, BatchNorm
from holdfast.methods.cmae import CMAE
from holdfast.methods.cmf import CMF
from holdfast.methods.cotta import CoTTA
from holdfast.methods.datta import DATTA
from holdfast.methods.deyo import DeYO
from holdfast.methods.dplot import DPLOT
from holdfast.methods.eata import EATA
from holdfast.methods.eta import ETA
from holdfast.methods.lame import LAME
from holdfast.methods.law import LAW
from holdfast.methods.memo import MEMO
from holdfast.methods.palm import PALM
from holdfast.methods.petal import PETAL
from holdfast.methods.petta import PeTTA
from holdfast.methods.rem import REM
from holdfast.methods.reservoir import Reservoir
from holdfast.methods.rmt import RMT
from holdfast.methods.roid import ROID
from holdfast.methods.rotta import RoTTA
from holdfast.methods.rpl import RPL
from holdfast.methods.santa import SANTA
from holdfast.methods.sar import SAR
from holdfast.methods.source import Source
from holdfast.methods.tent import Tent
from holdfast.methods.vida import ViDA
from holdfast.step import Objective, Step

__all__ = [
    "CMAE",
    "CMF",
    "DATTA",
    "DPLOT",
    "EATA",
    "ETA",
    "LAME",
    "LAW",
    "MEMO",
    "PALM",
    "PETAL",
    "REM",
    "RMT",
    "ROID",
    "RPL",
    "SANTA",
    "SAR",
    "AlphaBatchNorm",
    "BatchNorm",
    "CoTTA",
    "DeYO",
    "Method",
    "Objective",
    "PeTTA",
    "Reservoir",
    "RoTTA",
    "Source",
    "Step",
    "Tent",
    "ViDA",
]
