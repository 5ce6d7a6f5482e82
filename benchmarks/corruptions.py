"""Time per image of our corruptions and of the `imagecorruptions-imaug` package, one core, in one run.

    pip install imagecorruptions-imaug scikit-learn  # the latter for its photographs and threadpoolctl
    python benchmarks/corruptions.py

Both sides see the same photographs. They take turns, corruption by corruption and round by round, so that a busy
machine slows both; the table shows the median over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import cv2
import imagecorruptions
import numpy as np
from sklearn.datasets import load_sample_images
from threadpoolctl import threadpool_limits

from tidefast.corruptions import EXTRA, IMAGENET_C, corrupt

SIDE = 224
TARGET = 5.0


def photographs(count: int) -> np.ndarray:
    """Different crops [count, 224, 224, 3] of scikit-learn's two sample photographs."""
    random = np.random.default_rng(0)
    pictures = load_sample_images().images
    crops = []
    for i in range(count):
        picture = pictures[i % len(pictures)]
        side = int(random.integers(SIDE, 400))
        top, left = (int(random.integers(extent - side + 1)) for extent in picture.shape[:2])
        crop = picture[top : top + side, left : left + side]
        crops.append(cv2.resize(crop, (SIDE, SIDE), interpolation=cv2.INTER_AREA))
    return np.stack(crops)


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, severity: int, images: np.ndarray, rounds: int) -> tuple[float, float]:
    """Median milliseconds per image, ours and theirs, taking turns after one round that is not counted."""

    def ours() -> object:
        return corrupt(images, name, severity, seed=0)

    def theirs() -> object:
        return [imagecorruptions.corrupt(image, severity=severity, corruption_name=name) for image in images]

    ours(), theirs()
    times = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    mine, others = (statistics.median(column) * 1e3 / len(images) for column in zip(*times, strict=True))
    return mine, others


def row(name: str, mine: float, others: float) -> str:
    """One line of the table."""
    return f"| {name:<18} | {mine:>9.3f} | {others:>9.3f} | {others / mine:>6.1f} |"


def main() -> None:
    """Print the table, and whether the two targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--images", type=int, default=8, help="images per batch")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()

    cv2.setNumThreads(1)
    threadpool_limits(1)
    images = photographs(arguments.images)
    print(f"severity {arguments.severity}, {SIDE} pixels, {arguments.images} images, {arguments.rounds} rounds\n")
    print("| corruption         | ours (ms) | theirs    | ratio  |")
    print("| ---                | ---       | ---       | ---    |")
    results = {}
    for name in IMAGENET_C + EXTRA:
        results[name] = measure(name, arguments.severity, images, arguments.rounds)
        print(row(name, *results[name]), flush=True)
    mine, others = (sum(results[name][side] for name in IMAGENET_C) for side in (0, 1))
    print(row("sum of the 15", mine, others))
    slower = [name for name in IMAGENET_C if results[name][0] > results[name][1]]
    print(f"\nat least {TARGET:g} times faster over the 15: {'yes' if others >= TARGET * mine else 'no'}")
    print(f"slower than theirs: {', '.join(slower) or 'none'}")


if __name__ == "__main__":
    main()
