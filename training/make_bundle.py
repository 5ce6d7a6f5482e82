"""Make the image file that comes with the package, from a folder that holds CIFAR-10.

    python training/make_bundle.py --data cifar

Writes the first images of each class of the test split, in their order there; the result is the same bytes on every
run with the same liblzma.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import numpy as np

from holdfast import datasets
from holdfast.datasets.bundled import FILE
from holdfast.datasets.packing import pack, unpack

PER_CLASS = 300


def main() -> None:
    """Choose, pack, check and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10")
    test = datasets.cifar10(parser.parse_args().data, "test")
    firsts = [np.flatnonzero(test.labels == label)[:PER_CLASS] for label in range(len(test.classes))]
    chosen = test[np.sort(np.concatenate(firsts))]
    packed = pack(chosen.images, chosen.labels, chosen.origins)
    for read, meant in zip(unpack(packed), (chosen.images, chosen.labels, chosen.origins), strict=True):
        np.testing.assert_array_equal(read, meant)
    path = Path(datasets.__file__).parent / FILE
    path.write_bytes(packed)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.info("%s: %d images, %d bytes", path.name, len(chosen), len(packed))


if __name__ == "__main__":
    main()
