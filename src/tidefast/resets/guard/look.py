"""The look of a stream: clean images get the mean, the blur and the noise of others, and keep what they show."""

from __future__ import annotations

import torch
from torch import Tensor


def dress(images: Tensor, like: Tensor, generator: torch.Generator) -> Tensor:
    """`images` [n, C, H, W] with the colour and the power spectrum of `like` [m, C, H, W].

    For each channel and each ring of frequencies: where `like` has less power, the images lose as much (blur, loss of
    contrast); where it has more, noise of that power is added. The result stays within the range of both. Inputs other
    than images of one size come back as they are.

    >>> stripes = torch.zeros(8, 1, 16, 16)
    >>> stripes[..., ::2] = 1.0
    >>> grey = dress(stripes, torch.full((4, 1, 16, 16), 0.5), torch.Generator())
    >>> bool((grey - 0.5).abs().max() < 1e-5)
    True
    """
    if images.dim() != 4 or like.dim() != 4 or images.shape[1:] != like.shape[1:] or images.dtype == torch.float16:
        return images
    height, width = images.shape[-2:]
    rings = _rings(height, width, images.device)
    colour, their_colour = (batch.mean((0, 2, 3), keepdim=True) for batch in (images, like))
    waves = torch.fft.rfft2(images - colour)
    power, theirs = _power(waves, rings), _power(torch.fft.rfft2(like - their_colour), rings)
    # Drawn on the CPU, so that every device has the same.
    noise = torch.fft.rfft2(torch.randn(images.shape, generator=generator).to(images))
    kept = (theirs / power.clamp_min(torch.finfo(power.dtype).tiny)).clamp_max(1.0).sqrt()
    added = ((theirs - power).clamp_min(0.0) / _power(noise, rings).clamp_min(torch.finfo(power.dtype).tiny)).sqrt()
    spectrum = waves * kept[:, rings] + noise * added[:, rings]
    dressed: Tensor = torch.fft.irfft2(spectrum, s=(height, width)) + their_colour
    return dressed.clamp(torch.minimum(images.amin(), like.amin()), torch.maximum(images.amax(), like.amax()))


def _rings(height: int, width: int, device: torch.device) -> Tensor:
    """The ring of each frequency of a real transform [height, width // 2 + 1]."""
    rows, columns = torch.fft.fftfreq(height, device=device)[:, None], torch.fft.rfftfreq(width, device=device)
    return (torch.hypot(rows, columns.expand(height, -1)) * min(height, width)).round().long()


def _power(waves: Tensor, rings: Tensor) -> Tensor:
    """Mean power [C, rings] over images [n, C, H, W // 2 + 1] and the frequencies of a ring."""
    power = (waves.real.square() + waves.imag.square()).mean(0).flatten(1)
    places, count = (
        rings.flatten(),
        len(rings) + 1,
    )  # more than there are: the last lies at most at 0.71 of the lesser side
    sums = power.new_zeros(len(power), count).index_add_(1, places, power)
    return sums / power.new_zeros(count).index_add_(0, places, power.new_ones(len(places))).clamp_min(1.0)
