"""Make the image files that come with the package, from a folder that holds CIFAR-10.

    python training/make_bundle.py --data cifar

Writes the first images of each class of both splits, in their order there; the result is the same bytes on every
run with the same liblzma.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import numpy as np

from tidefast import datasets
from tidefast.datasets.bundled import FILES, PER_CLASS
from tidefast.datasets.packing import pack, unpack


def main() -> None:
    """Choose, pack, check and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10")
    data = parser.parse_args().data
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for split, file in FILES.items():
        whole = datasets.cifar10(data, split)
        firsts = [np.flatnonzero(whole.labels == label)[: PER_CLASS[split]] for label in range(len(whole.classes))]
        chosen = whole[np.sort(np.concatenate(firsts))]
        packed = pack(chosen.images, chosen.labels, chosen.origins)
        for read, meant in zip(unpack(packed), (chosen.images, chosen.labels, chosen.origins), strict=True):
            np.testing.assert_array_equal(read, meant)
        (Path(datasets.__file__).parent / file).write_bytes(packed)
        logging.info("%s: %d images, %d bytes", file, len(chosen), len(packed))


if __name__ == "__main__":
    main()
