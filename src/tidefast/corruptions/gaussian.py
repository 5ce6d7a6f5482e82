"""Gaussian filters: of images with replicated edges, of random fields with reflected ones."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy import fft

from tidefast.corruptions.compiled import compiled
from tidefast.corruptions.images import Bytes, Double, truncate, unit
from tidefast.corruptions.severity import SeverityConstants


@lru_cache(maxsize=128)
def taps(sigma: float, reach: float) -> Double:
    """Half of a normalised Gaussian, from the centre outwards, cut at `reach` sigmas."""
    radius = int(reach * sigma + 0.5)
    if radius == 0:
        return np.ones(1)
    weights = np.exp(-0.5 / (sigma * sigma) * np.arange(-radius, radius + 1) ** 2)
    weights /= weights.sum()
    return np.ascontiguousarray(weights[radius:])


def smooth(image: Double, sigma: float) -> Double:
    """Filter [H, W, C] along rows and columns, cut at four sigmas, edges replicated."""
    weights = taps(sigma, 4.0)
    if weights.size == 1:
        return image
    out = np.empty(image.shape)
    height, channels = image.shape[0], image.shape[2]
    _smooth(image.reshape(height, -1), weights, channels, out.reshape(height, -1))
    return out


@compiled
def _smooth(image: Double, weights: Double, channels: int, out: Double) -> None:
    # Sums run from the outermost pair inwards, along columns before rows: SciPy's order, hence SciPy's bits.
    height, length = image.shape
    radius = weights.size - 1
    margin = radius * channels
    padded = np.empty(length + 2 * margin)
    for y in range(height):
        middle = padded[margin : margin + length]
        middle[:] = image[y] * weights[0]
        for j in range(radius, 0, -1):
            _add_pair(middle, image[max(y - j, 0)], image[min(y + j, height - 1)], weights[j])
        for i in range(margin):
            padded[i] = middle[i % channels]
            padded[margin + length + i] = middle[length - channels + i % channels]
        out[y] = middle * weights[0]
        for j in range(radius, 0, -1):
            _add_pair(out[y], padded[margin - j * channels :], padded[margin + j * channels :], weights[j])


@compiled
def _add_pair(total: Double, before: Double, after: Double, weight: float) -> None:
    # A function of its own: only so does the compiler see three plain vectors.
    for i in range(total.size):
        total[i] += (before[i] + after[i]) * weight


def gaussian_blur(image: Bytes, constants: SeverityConstants) -> Bytes:
    """Blur with a Gaussian of the given sigma."""
    (sigma,) = constants
    return truncate(smooth(unit(image), sigma))


@lru_cache(maxsize=32)
def _response(size: int, sigma: float) -> Double:
    """How the reflected filter, cut at three sigmas, scales each cosine of a row of `size` values."""
    weights = taps(sigma, 3.0)
    # The cosines repeat after 2 * size taps: fold first, as sigma may be many times the image.
    folded = np.zeros(2 * size)
    np.add.at(folded, np.arange(weights.size) % (2 * size), weights * np.where(np.arange(weights.size) > 0, 2.0, 1.0))
    angles = np.outer(np.arange(size), np.arange(2 * size)) * (np.pi / size)
    return np.asarray(np.cos(angles) @ folded)


def smooth_reflected(fields: Double, sigma: float) -> Double:
    """Filter [N, H, W] fields, cut at three sigmas, edges reflected; exact for any sigma, in the cosine basis."""
    height, width = fields.shape[1:]
    spectrum = fft.dctn(fields, axes=(1, 2))
    spectrum *= _response(height, sigma)[:, None] * _response(width, sigma)
    return np.asarray(fft.idctn(spectrum, axes=(1, 2), overwrite_x=True))
