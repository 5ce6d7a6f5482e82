"""Array types, and the way back from real numbers to bytes."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidefast.corruptions.compiled import compiled

Bytes: TypeAlias = npt.NDArray[np.uint8]
Single: TypeAlias = npt.NDArray[np.float32]
Double: TypeAlias = npt.NDArray[np.float64]


def unit(image: Bytes) -> Double:
    """Levels as numbers in [0, 1]; `truncate` takes each back to the very level it came from."""
    return image / 255.0


def truncate(unit: Single | Double) -> Bytes:
    """Clip to [0, 1], scale to 0..255 and cut off the fraction, as the reference does: it never rounds.

    >>> truncate(np.array([-0.1, 0.5, 0.999, 1.2]))
    array([  0, 127, 254, 255], dtype=uint8)
    """
    out = np.empty(unit.shape, dtype=np.uint8)
    _truncate(unit.reshape(-1), out.reshape(-1))
    return out


@compiled
def _truncate(unit: Single | Double, out: Bytes) -> None:
    for i in range(unit.size):
        out[i] = np.uint8(min(max(unit[i], unit.dtype.type(0)), unit.dtype.type(1)) * unit.dtype.type(255))
