"""What a stream of stored files costs: listing a folder as large as one corruption of ImageNet-C, and reading from it.

python benchmarks/stored_files.py
"""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tidefast.streams import make

CLASSES, EACH = 1000, 50


def write(root: Path) -> None:
    """One JPEG of 224 pixels for each class, under fifty names."""
    noise = np.random.default_rng(0).integers(0, 256, (28, 28, 3), np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(noise).resize((224, 224)).save(encoded, "JPEG", quality=85)
    for label in range(CLASSES):
        folder = root / "fog" / "5" / f"n{label:08d}"
        folder.mkdir(parents=True)
        first = folder / f"ILSVRC2012_val_{label * EACH:08d}.JPEG"
        first.write_bytes(encoded.getvalue())
        for i in range(1, EACH):
            os.link(first, folder / f"ILSVRC2012_val_{label * EACH + i:08d}.JPEG")


def main() -> None:
    """Print the times and the bytes that a worker process is sent."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        started = time.perf_counter()
        stream = make("cin-c", root=folder, corruptions=("fog",))
        print(f"{CLASSES * EACH} files listed in {time.perf_counter() - started:.2f} s")
        print(f"{len(pickle.dumps(stream)) / 1e6:.1f} MB for each worker process")
        times = []
        for k in range(0, len(stream), len(stream) // 10):
            started = time.perf_counter()
            stream[k]
            times.append(time.perf_counter() - started)
        print(f"{1000 * float(np.median(times)):.0f} ms for a batch of 64 at any step (median of {len(times)})")


if __name__ == "__main__":
    main()
