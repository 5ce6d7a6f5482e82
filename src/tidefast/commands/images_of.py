"""Images on the command line: where they are, how large they become, and which classes of the model theirs are."""

from __future__ import annotations

import argparse

OPTIONS = ("data", "size", "resize", "classes")


def arguments(parser: argparse.ArgumentParser, what: str, default: str | None = None) -> None:
    """What says which images."""
    parser.add_argument(
        "--data",
        default=default,
        metavar="PATH",
        help=f"{what}: a folder with a folder for each class, a file .npz, or a name of `tidefast list datasets`"
        + (f" (default {default})" if default else ""),
    )
    parser.add_argument(
        "--size", type=int, help="side of the square cut out of image files (default: what the model declares, or 224)"
    )
    parser.add_argument("--resize", type=int, help="their shorter side before that (default: 8/7 of the size)")
    parser.add_argument(
        "--classes",
        metavar="FILE",
        help="the model's class names, one on each line in the order of its outputs, or .json of names and indices, or "
        "'imagenet'; needed where the images have fewer classes whose names are neither indices nor WordNet ids",
    )
