"""Randomness that depends on the image's place in the stream and on nothing else."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt


def generator(seed: int, index: int, name: str) -> np.random.Generator:
    """The generator of image `index` of stream `seed` under corruption `name`.

    Philox is counter-based: (seed, index) is its key, and the name picks a stretch of its counter, so that two
    corruptions of the same image draw independently.

    >>> bool(generator(1, 7, "fog").random() == generator(1, 7, "fog").random())
    True
    >>> bool(generator(1, 7, "fog").random() == generator(1, 8, "fog").random())
    False
    """
    key = np.array([seed, index], dtype=np.uint64)
    counter = np.array([0, 0, 0, zlib.crc32(name.encode())], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def uniform_bits(random: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    """Independent 32-bit words, straight from the counter."""
    count = int(np.prod(shape))
    words = random.bit_generator.random_raw((count + 1) // 2)
    return np.asarray(words, dtype=np.uint64).view(np.uint32)[:count].reshape(shape)
