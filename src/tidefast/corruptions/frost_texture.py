"""Textures of frosted glass, grown from noise: nothing to download, nobody's photograph.

Each is a periodic square. Ferns of ice, stems with barbs on both sides, give the shapes; then the spectrum, mean
colour and contrast are set to those measured on the photographs that the published data used.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from tidefast.corruptions.images import Bytes, Double

SIDE = 512
_SUBPIXEL_BITS = 4


@dataclass(frozen=True)
class Window:
    """One frosted window: the measured statistics, and the habit of its ferns."""

    color: tuple[float, float, float]  # mean red, green, blue
    deviation: float  # standard deviation of each channel
    coarse: float  # slope of log power over log frequency, below 8 cycles per 224 pixels
    fine: float  # and above
    length: float  # mean length of a fern, pixels
    barb: float  # length of the longest barbs, as a share of the fern's


# The published data draw from five photographs, two of them the same: here two windows of one kind, not one twice.
WINDOWS = (
    Window((78, 149, 165), 20.0, -3.3, -1.1, length=70, barb=0.1),
    Window((198, 202, 211), 21.0, -2.1, -1.9, length=90, barb=0.12),
    Window((198, 202, 211), 21.0, -2.1, -1.9, length=90, barb=0.12),
    Window((144, 159, 172), 27.0, -1.7, -1.4, length=35, barb=0.4),
    Window((101, 112, 124), 37.0, -1.3, -1.9, length=70, barb=0.35),
)


@lru_cache(maxsize=2 * len(WINDOWS))
def texture(index: int, size: float) -> Bytes:
    """Window `index` as [H, W, 3], its sides scaled by `size` without smoothing first."""
    if size != 1.0:
        return np.asarray(cv2.resize(texture(index, 1.0), None, fx=size, fy=size), dtype=np.uint8)
    window = WINDOWS[index]
    random = np.random.Generator(np.random.Philox(key=index))
    ice = _bend(_ferns(window, random), random)
    grain = _shape_spectrum(random.standard_normal((SIDE, SIDE)), window.coarse, window.fine)
    relief = _shape_spectrum(ice + 0.5 * ice.std() * grain, window.coarse, window.fine)
    return np.clip(np.array(window.color) + window.deviation * relief[..., None], 0, 255).astype(np.uint8)


def _ferns(window: Window, random: np.random.Generator) -> Double:
    """Ferns on the torus, later ones over earlier ones."""
    canvas = np.zeros((SIDE, SIDE), dtype=np.uint8)
    for _ in range(round(20 * (SIDE / window.length) ** 2)):
        length = min(window.length * (0.3 + random.exponential(0.7)), 0.4 * SIDE)
        segments = _fern(SIDE * random.random(2), length, window.barb * length, random)
        shade = 40 + 215 * random.random()
        for turn in itertools.product(*(_turns(segments[..., axis]) for axis in (0, 1))):
            ends = np.rint((segments + turn) * 2**_SUBPIXEL_BITS).astype(np.int32)
            cv2.polylines(canvas, list(ends), False, shade, 1, cv2.LINE_AA, _SUBPIXEL_BITS)
    return canvas.astype(np.float64)


def _turns(coordinates: Double) -> list[int]:
    """By how much a shape must be moved along one axis to show on the torus wherever it leaves the square."""
    return [0, *([SIDE] if coordinates.min() < 0 else []), *([-SIDE] if coordinates.max() >= SIDE else [])]


def _fern(root: Double, length: float, barb: float, random: np.random.Generator) -> Double:
    """Line segments [N, 2, 2] of a stem and its barbs, which are shorter towards the tip."""
    heading = 2 * math.pi * random.random()
    stem = length * np.array([math.cos(heading), math.sin(heading)])
    along = np.sort(random.random(max(round(0.6 * length), 4)))
    side = random.choice((-1.0, 1.0), size=along.size)
    angle = heading + side * (math.pi / 3) * random.uniform(0.7, 1.1, size=along.size)  # ice grows at sixty degrees
    reach = barb * (1.0 - along) * random.uniform(0.3, 1.2, size=along.size)
    base = root + along[:, None] * stem
    barbs = np.stack([base, base + reach[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)], axis=1)
    return np.concatenate([[[root, root + stem]], barbs])


def _bend(field: Double, random: np.random.Generator) -> Double:
    """The field with its straight lines bent by a few pixels."""
    shift = [4.0 * _shape_spectrum(random.standard_normal((SIDE, SIDE)), -3.0, -4.0) for _ in range(2)]
    rows, columns = np.indices((SIDE, SIDE))
    where = ((columns + shift[0]).astype(np.float32), (rows + shift[1]).astype(np.float32))
    return np.asarray(cv2.remap(field, *where, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP), dtype=np.float64)


def _shape_spectrum(field: Double, coarse: float, fine: float) -> Double:
    """The field with a power-law spectrum on average over directions, mean 0 and deviation 1; phases stay."""
    spectrum = np.fft.rfft2(field - field.mean())
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)) * 224.0
    frequency[0, 0] = 1.0
    octave = np.log2(frequency)
    ring = np.rint(2.0 * (octave - octave.min())).astype(np.int64)
    power = np.bincount(ring.ravel(), np.abs(spectrum.ravel()) ** 2) / np.maximum(np.bincount(ring.ravel()), 1)
    present = np.interp(2.0 * (octave - octave.min()), np.arange(power.size), np.log2(np.maximum(power, 1e-12)))
    wanted = np.where(octave < 3.0, coarse * (octave - 3.0), fine * (octave - 3.0))
    shaped = np.fft.irfft2(spectrum * 2.0 ** ((wanted - present) / 2.0), s=field.shape)
    return np.asarray((shaped - shaped.mean()) / shaped.std())
