"""Glass blur: pixels seen through frosted glass come from somewhere nearby."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidefast.corruptions.compiled import compiled
from tidefast.corruptions.gaussian import smooth
from tidefast.corruptions.images import Bytes, truncate, unit
from tidefast.corruptions.severity import SeverityConstants

Displacements = npt.NDArray[np.int8]


def glass_blur(image: Bytes, constants: SeverityConstants, random: np.random.Generator) -> Bytes:
    """Blur, displace every pixel a few times, blur again."""
    sigma, reach, sweeps = constants[0], int(constants[1]), int(constants[2])
    displaced = truncate(smooth(unit(image), sigma))
    height, width = image.shape[:2]
    rows, columns = max(height - 2 * reach, 0), max(width - 2 * reach, 0)
    offsets = random.integers(-reach, reach, size=(sweeps, rows, columns, 2), dtype=np.int8)
    displace(displaced, offsets, reach)
    return truncate(smooth(unit(displaced), sigma))


@compiled
def displace(image: Bytes, offsets: Displacements, reach: int) -> None:
    """Overwrite each inner pixel, from the bottom right, by the one at its offset (column, row), in place.

    The other pixel keeps its value. The reference reads as if it swapped the two, but its second assignment
    sees the first one's result; all published data were made by this copy.
    """
    sweeps, rows, columns = offsets.shape[:3]
    for sweep in range(sweeps):
        for i in range(rows):
            y = rows + reach - i
            for j in range(columns):
                x = columns + reach - j
                source_y = y + offsets[sweep, i, j, 1]
                source_x = x + offsets[sweep, i, j, 0]
                for channel in range(3):
                    image[y, x, channel] = image[source_y, source_x, channel]
