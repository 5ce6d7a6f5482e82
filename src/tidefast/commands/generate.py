"""`tidefast generate`."""

from __future__ import annotations

import argparse

from tidefast.commands import images_of
from tidefast.commands.given import given as given_options

PURPOSE = "write a CCC stream as tar shards in the published layout"
EXAMPLE = "tidefast generate --level hard --speed 160 --seed 43 --total 8000 --images-per-shard 2000 --out shards"
EXTRA = "data"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where the stream's own folder is made")
    images_of.arguments(parser, "clean images, of which those of ccc-mini are", default="bundled")
    parser.add_argument("--level", default="hard", help="easy, medium, hard, or a target in percent (default hard)")
    parser.add_argument("--target", type=float, help="accuracy that paths aim at (default: the level's)")
    parser.add_argument("--speed", default=None, help="images per cell, or 'random' (default: 1000; ccc-mini 160)")
    parser.add_argument("--seed", type=int, default=43, help="of the stream (default %(default)s)")
    parser.add_argument("--matrix", help="accuracies: file, 'bundled' or 'synthetic' (default: bundled with its data)")
    parser.add_argument("--total", type=int, help="images at least (default: 7500000; ccc-mini 96000)")
    parser.add_argument("--images-per-shard", type=int, default=25_000, help="at least (default %(default)s)")
    parser.add_argument("--format", choices=("jpg", "png"), help="of the images (default: jpg; ccc-mini png)")
    parser.add_argument("--no-crop", action="store_true", help="whole images instead of random pieces")
    parser.add_argument("--workers", type=int, default=0, help="processes of one thread (default: none, in this one)")


def run(options: argparse.Namespace) -> None:
    """Write what is missing of the stream."""
    import numpy as np

    from tidefast import datasets
    from tidefast.commands.bar import bar
    from tidefast.streams.ccc_recipes import CCC1kRecipe, CCCMiniRecipe, CCCRecipe
    from tidefast.streams.generation import generate

    given = {
        "level": _number(options.level),
        "target": options.target,
        "speed": None if options.speed is None else _number(options.speed),
        "matrix": options.matrix,
        "total": options.total,
        "crop": False if options.no_crop else None,
    }
    small = {"bundled": CCCMiniRecipe, "bundled-1k": CCC1kRecipe}
    recipe = small.get(options.data, CCCRecipe)(**{key: value for key, value in given.items() if value is not None})
    data = datasets.open(options.data, **given_options(options, "size", "resize", "classes"))
    if set(data.classes) <= set(datasets.imagenet_ids()):  # whoever reads the shards takes their labels for ImageNet's
        data = datasets.matched(data, datasets.imagenet_ids())
    shown = np.unique(data.labels)
    print(f"{len(data)} images of {len(shown)} classes, labels {shown[0]} to {shown[-1]}", flush=True)
    with bar("shards") as progress:
        folder = generate(
            recipe,
            data,
            options.out,
            seed=options.seed,
            images_per_shard=options.images_per_shard,
            kind=options.format,
            workers=options.workers,
            progress=progress,
        )
    print(f"wrote {folder}; as a stream: --stream ccc-shards:path={folder}")


def _number(text: str) -> float | str:
    """A number as a number, anything else as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
