"""The constants of every corruption as a function of severity, piecewise linear through six knots."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from tidefast.core.validation import require_choice, require_number

Scale = Literal["imagenet", "cifar"]
SCALES: tuple[Scale, ...] = get_args(Scale)
MAX_SEVERITY = 5

SeverityConstants = tuple[float, ...]

# One row per severity 0..5. Rows 1..5 are the published constants of ImageNet-C and CIFAR-C; row 0, which shapes the
# severities below 1, is CCC's for the fifteen at 224 pixels and our continuation of it elsewhere.
_IMAGENET: dict[str, tuple[SeverityConstants, ...]] = {
    "gaussian_noise": ((0,), (0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),  # standard deviation
    "shot_noise": ((0,), (1 / 60,), (1 / 25,), (1 / 12,), (1 / 5,), (1 / 3,)),  # 1 / photons at white
    "impulse_noise": ((0,), (0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),  # share of values replaced
    "defocus_blur": ((0, 0), (3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),  # radius, smoothing of the rim
    "glass_blur": ((0, 0, 0), (0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),  # sigma, reach, sweeps
    "motion_blur": ((0, 0), (10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),  # radius, sigma
    "zoom_blur": ((1, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),  # stop, step
    "snow": (  # mean, deviation, zoom, threshold, radius, sigma, share of the original colours
        (0.1, 0.3, 3, 1.0, 10, 4, 1.0),
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    # Weight of the image, weight of the frost, size of the frost pictures.
    "frost": ((1, 0, 1), (1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    "fog": ((0, 2), (1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),  # thickness, decay per octave
    "brightness": ((0,), (0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),  # added to the HSV value
    "contrast": ((1,), (0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),  # factor around the mean
    # Displacement, its smoothness, jitter of the affine map. Multiples of 244 for 224 pixels: the published benchmark.
    "elastic_transform": (
        (0, 999, 0),
        (488, 170.8, 24.4),
        (488, 19.52, 48.8),
        (12.2, 2.44, 4.88),
        (17.08, 2.44, 4.88),
        (29.28, 2.44, 4.88),
    ),
    "pixelate": ((1,), (0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),  # side after shrinking
    "jpeg_compression": ((85,), (25,), (18,), (15,), (10,), (7,)),  # libjpeg quality
    "speckle_noise": ((0,), (0.15,), (0.2,), (0.35,), (0.45,), (0.6,)),  # standard deviation at white
    "gaussian_blur": ((0,), (1,), (2,), (3,), (4,), (6,)),  # sigma
    # Mean, deviation, sigma and threshold of the drops; strength of water; sigma and opacity of mud. Severities 1..3
    # are water and 4..5 mud; in between the water fades out while the mud fades in.
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0, 1.5, 0),
        (0.65, 0.3, 4, 0.69, 0.6, 1.5, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 1.5, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 1.5, 0),
        (0.65, 0.3, 1, 0.65, 0, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 0, 1.5, 1),
    ),
    "saturate": ((1, 0), (0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),  # factor, offset
}

_CIFAR: dict[str, tuple[SeverityConstants, ...]] = {
    "gaussian_noise": ((0,), (0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((0,), (1 / 500,), (1 / 250,), (1 / 100,), (1 / 75,), (1 / 50,)),
    "impulse_noise": ((0,), (0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0, 0), (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0, 0, 0), (0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((0, 0), (6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((1, 0.01), (1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 1.0, 8, 3, 1.0),
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0, 0.2), (1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
    "fog": ((0, 3), (0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": ((0,), (0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((1,), (0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": (
        (0, 0, 0),
        (0, 0, 2.56),
        (1.6, 6.4, 2.24),
        (2.56, 1.92, 1.92),
        (3.2, 1.28, 1.6),
        (3.2, 0.96, 0.96),
    ),
    "pixelate": ((1,), (0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg_compression": ((85,), (80,), (65,), (58,), (50,), (40,)),
    "speckle_noise": ((0,), (0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    "gaussian_blur": ((0,), (0.4,), (0.6,), (0.7,), (0.8,), (1,)),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0, 0.6, 0),
        (0.62, 0.1, 0.7, 0.7, 0.5, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0.6, 0),
        (0.65, 0.1, 0.7, 0.69, 0, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0, 0.6, 1),
    ),
    "saturate": ((1, 0), (0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}

_KNOTS: dict[Scale, dict[str, tuple[SeverityConstants, ...]]] = {"imagenet": _IMAGENET, "cifar": _CIFAR}


def constants(name: str, severity: float, scale: Scale = "imagenet") -> SeverityConstants:
    """The constants of corruption `name` (canonical) at a severity in (0, 5].

    >>> constants("contrast", 0.5)
    (0.7,)
    >>> constants("jpeg_compression", 2.25)  # whole numbers are rounded half to even, as CCC does
    (17.0,)
    """
    knots = np.asarray(_KNOTS[scale][name], dtype=np.float64)
    values = tuple(float(np.interp(severity, np.arange(MAX_SEVERITY + 1), column)) for column in knots.T)
    if name == "shot_noise":  # interpolated as the noise's variance, used as the photon count
        return (1.0 / values[0] if values[0] > 0 else math.inf,)
    if name == "glass_blur":
        sigma, reach, sweeps = values
        return (sigma, float(round(max(reach, 1.0))), float(round(sweeps)))
    if name == "jpeg_compression":
        return (float(round(values[0])),)
    return values


def require_severity(severity: float) -> None:
    """Raise unless `severity` is a number in [0, 5]."""
    value = severity.item() if isinstance(severity, np.generic) else severity
    require_number("severity", value, 0, MAX_SEVERITY)


def require_scale(scale: str) -> None:
    """Raise unless `scale` names a set of constants."""
    require_choice("scale", scale, SCALES)
