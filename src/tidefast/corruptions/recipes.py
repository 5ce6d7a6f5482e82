"""Which function makes which corruption."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidefast.corruptions import color, noise
from tidefast.corruptions.defocus import defocus_blur
from tidefast.corruptions.elastic import elastic_transform
from tidefast.corruptions.fog import fog
from tidefast.corruptions.frost import frost
from tidefast.corruptions.gaussian import gaussian_blur
from tidefast.corruptions.glass import glass_blur
from tidefast.corruptions.images import Bytes
from tidefast.corruptions.jpeg import jpeg_compression
from tidefast.corruptions.motion import motion_blur
from tidefast.corruptions.pixelate import pixelate
from tidefast.corruptions.severity import SeverityConstants
from tidefast.corruptions.snow import snow
from tidefast.corruptions.spatter import spatter
from tidefast.corruptions.zoom import zoom_blur

DETERMINISTIC: dict[str, Callable[[Bytes, SeverityConstants], Bytes]] = {
    "defocus_blur": defocus_blur,
    "zoom_blur": zoom_blur,
    "brightness": color.brightness,
    "contrast": color.contrast,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
    "gaussian_blur": gaussian_blur,
    "saturate": color.saturate,
}

RANDOM: dict[str, Callable[[Bytes, SeverityConstants, np.random.Generator], Bytes]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "elastic_transform": elastic_transform,
    "speckle_noise": noise.speckle_noise,
    "spatter": spatter,
}
