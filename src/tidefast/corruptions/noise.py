"""The four noises, each as a table: how a level turns into the 256 output levels.

Every pixel noise here acts on one value at a time, and bytes come in and go out. So a noise is 256 discrete
distributions, tabulated once per severity from the exact distribution function, and drawn from by inversion with one
31-bit number per value. That is exact to 2**-31, needs no normal or Poisson sampler, and couples the severities:
the same image at a slightly higher severity gets slightly more of the same noise.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, pdtr

from tidefast.corruptions.compiled import compiled
from tidefast.corruptions.images import Bytes, Double
from tidefast.corruptions.randomness import uniform_bits
from tidefast.corruptions.severity import SeverityConstants

Thresholds = npt.NDArray[np.uint32]
_IN: Double = np.arange(256, dtype=np.float64)[:, None]  # input level
_ABOVE: Double = np.arange(1, 257, dtype=np.float64)[None, :]  # truncation: output <= j means value < j + 1

_LEAST_DEVIATION = 1e-30  # keeps quotients finite; far below what moves a level


def gaussian_noise(image: Bytes, constants: SeverityConstants, random: np.random.Generator) -> Bytes:
    """Add N(0, c^2) to every value."""
    return _draw(image, _tables("gaussian_noise", *constants), random)


def shot_noise(image: Bytes, constants: SeverityConstants, random: np.random.Generator) -> Bytes:
    """Replace every value by a Poisson count of c photons at white."""
    return _draw(image, _tables("shot_noise", *constants), random)


def impulse_noise(image: Bytes, constants: SeverityConstants, random: np.random.Generator) -> Bytes:
    """Replace a share c of the values by black or white, each channel for itself."""
    return _draw(image, _tables("impulse_noise", *constants), random)


def speckle_noise(image: Bytes, constants: SeverityConstants, random: np.random.Generator) -> Bytes:
    """Multiply every value by 1 + N(0, c^2)."""
    return _draw(image, _tables("speckle_noise", *constants), random)


def distribution(name: str, constant: float) -> Double:
    """P(output <= j | input = i) for all levels i (rows) and j (columns)."""
    if name in ("gaussian_noise", "speckle_noise"):
        constant = max(constant, _LEAST_DEVIATION)
    with np.errstate(divide="ignore"):
        if name == "gaussian_noise":
            below = ndtr((_ABOVE - _IN) / (255.0 * constant))
        elif name == "speckle_noise":  # black has no noise: (j + 1) / 0 is plus infinity, probability one
            below = ndtr((_ABOVE - _IN) / (_IN * constant))
        elif name == "shot_noise":
            if np.isinf(constant):
                below = (_IN < _ABOVE).astype(np.float64)
            else:
                # The largest count whose level stays below j + 1; the slack keeps exact multiples on the right side.
                below = pdtr(np.ceil(_ABOVE * (constant / 255.0) - 1e-9) - 1.0, _IN * (constant / 255.0))
        else:
            below = constant / 2.0 + (1.0 - constant) * (_IN < _ABOVE)
    below = np.array(below, dtype=np.float64)
    below[:, -1] = 1.0  # values of one and more are clipped into the last level
    return below


@lru_cache(maxsize=64)
def _tables(name: str, constant: float) -> tuple[Thresholds, Bytes]:
    """Thresholds on a 31-bit number, and for its upper 8 bits the lowest level it can still mean."""
    thresholds = np.rint(distribution(name, constant) * 2.0**31).astype(np.uint32)
    bins = np.arange(256, dtype=np.uint32) << np.uint32(23)
    start = np.stack([np.searchsorted(row, bins, side="right") for row in thresholds]).astype(np.uint8)
    return thresholds, start


def _draw(image: Bytes, tables: tuple[Thresholds, Bytes], random: np.random.Generator) -> Bytes:
    out = np.empty(image.shape, dtype=np.uint8)
    _invert(image.reshape(-1), uniform_bits(random, (image.size,)), *tables, out.reshape(-1))
    return out


@compiled
def _invert(levels: Bytes, bits: Thresholds, thresholds: Thresholds, start: Bytes, out: Bytes) -> None:
    for i in range(levels.size):
        level = levels[i]
        draw = bits[i] >> np.uint32(1)
        result = np.intp(start[level, draw >> np.uint32(23)])
        # Most draws end within two steps: taken without a branch, as no processor could predict it.
        result += np.intp(draw >= thresholds[level, result])
        result += np.intp(draw >= thresholds[level, result])
        while draw >= thresholds[level, result]:
            result += 1
        out[i] = np.uint8(result)
