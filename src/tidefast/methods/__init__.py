"""One readable file per method."""

from tidefast.core.step import Forward, Objective, Step, Views
from tidefast.methods.base import Method, registry
from tidefast.methods.batchnorm import AlphaBatchNorm, BatchNorm
from tidefast.methods.cmae import CMAE
from tidefast.methods.cmf import CMF
from tidefast.methods.cotta import CoTTA
from tidefast.methods.datta import DATTA
from tidefast.methods.deyo import DeYO
from tidefast.methods.dplot import DPLOT
from tidefast.methods.eata import EATA
from tidefast.methods.eta import ETA
from tidefast.methods.lame import LAME
from tidefast.methods.law import LAW
from tidefast.methods.memo import MEMO
from tidefast.methods.palm import PALM
from tidefast.methods.petal import PETAL
from tidefast.methods.petta import PeTTA
from tidefast.methods.rem import REM
from tidefast.methods.reservoir import Reservoir
from tidefast.methods.rmt import RMT
from tidefast.methods.roid import ROID
from tidefast.methods.rotta import RoTTA
from tidefast.methods.rpl import RPL
from tidefast.methods.santa import SANTA
from tidefast.methods.sar import SAR
from tidefast.methods.source import Source
from tidefast.methods.tent import Tent
from tidefast.methods.vida import ViDA

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
    "Forward",
    "Method",
    "Objective",
    "PeTTA",
    "Reservoir",
    "RoTTA",
    "Source",
    "Step",
    "Tent",
    "ViDA",
    "Views",
]

# A file that is not named above is found, registered and an attribute here all the same.
globals().update(registry.discover(__name__))
