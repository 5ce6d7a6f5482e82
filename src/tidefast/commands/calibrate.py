"""`tidefast calibrate`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tidefast.commands import images_of

if TYPE_CHECKING:
    from tidefast.streams import Matrix

PURPOSE = "measure a model's accuracies under all pairs of corruptions, for calibrated CCC streams"
EXAMPLE = "tidefast calibrate --model bundled-resnet --level hard --images 200 --out hard.npz"
EXTRA = "data"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--out", metavar="FILE", help="an .npz for the matrix; the same call resumes a killed one")
    parser.add_argument("--model", default="bundled-resnet", help="registered or module:function (default %(default)s)")
    images_of.arguments(parser, "images to measure on", default="bundled")
    parser.add_argument("--crop", type=int, dest="size", help=argparse.SUPPRESS)  # what --size was called
    parser.add_argument("--images", type=int, help="measure on so many, drawn with --seed (default: all)")
    parser.add_argument("--level", default="easy", help="types of easy, medium or hard (default %(default)s: all 14)")
    parser.add_argument("--types", nargs="+", metavar="TYPE", help="types instead of those of a level")
    parser.add_argument(
        "--pairs",
        nargs="+",
        metavar="TYPE",
        help="measure only pairs of this level or these types; the others multiply",
    )
    parser.add_argument("--stride", type=int, default=4, help="measure every so many cells: 1, 2, 4, 5 (default 4)")
    parser.add_argument("--stop-at-chance", action="store_true", help="take the rest of a row at chance to be chance")
    parser.add_argument("--stop-below", type=float, metavar="PERCENT", help="likewise of a row that fell so far")
    parser.add_argument("--jpeg", type=int, metavar="QUALITY", help="0: none (default: 85, at about 32 pixels none)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of images and of the noise (default 0)")
    parser.add_argument("--batch", type=int, default=64, help="images per forward (default %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes of one thread (default: none, in this one)")
    parser.add_argument("--from-pickle", metavar="FILE", help="convert the published matrix instead of measuring")
    parser.add_argument("--show", metavar="FILE", help="only print what paths through a matrix give; 'bundled' is one")


def run(options: argparse.Namespace) -> None:
    """Measure, convert or show."""
    from pathlib import Path

    from tidefast.streams.matrix import Matrix, matrix_of

    if options.show is not None:
        _print(matrix_of(options.show))
        return
    if options.out is None:
        raise ValueError("--out: say where the matrix is to go, such as --out matrix.npz")
    out = Path(options.out)
    if not out.resolve().parent.is_dir():
        raise ValueError(f"--out: there is no folder {out.resolve().parent}; make it first")
    if options.from_pickle is not None:
        matrix = Matrix.of_pickle(options.from_pickle)
    else:
        matrix = _measure(options, out.with_name(f"{out.name}.part"))
    matrix.write(out)
    out.with_name(f"{out.name}.part").unlink(missing_ok=True)
    print(f"wrote {out}")
    _print(matrix)


def _measure(options: argparse.Namespace, part: object) -> Matrix:
    import sys

    import torch

    from tidefast import models
    from tidefast.commands.bar import bar
    from tidefast.models.images import images_for
    from tidefast.streams.calibration import measure
    from tidefast.streams.clean import clean_accuracy

    torch.set_num_threads(1)  # also in this process: the bits must not depend on the number of workers
    model = models.load(options.model)
    data = images_for(model, options.data, size=options.size, resize=options.resize, classes=options.classes)
    clean = clean_accuracy(model, data)
    print(f"{options.model}: {clean}", flush=True)
    if clean.at_chance:
        print(f"tidefast: warning: {clean.doubt}", file=sys.stderr)
    with bar("cells") as progress:
        return measure(
            model,
            data,
            options.types or options.level,
            pairs=_level_or_types(options.pairs),
            images=options.images,
            stride=options.stride,
            stop_at_chance=options.stop_at_chance,
            stop_below=options.stop_below,
            jpeg="auto" if options.jpeg is None else options.jpeg or None,
            seed=options.seed,
            batch=options.batch,
            workers=options.workers,
            keep=str(part),
            progress=progress,
            model_name=options.model,
            data_name=options.data,
        )


def _level_or_types(given: list[str] | None) -> str | list[str] | None:
    from tidefast.streams.ccc import LEVELS

    return given[0] if given is not None and given[0] in LEVELS else given


def _print(matrix: Matrix) -> None:
    """What streams of the three levels would have, as far as the matrix has their types."""
    from tidefast.streams.calibration import summarize
    from tidefast.streams.ccc import LEVELS
    from tidefast.streams.ccc_recipes import CCC1kRecipe, CCCMiniRecipe, CCCRecipe

    source = f"{matrix.count} images of {matrix.images}" if matrix.count else "unknown images"
    print(f"accuracies of {matrix.model or 'an unnamed model'} on {source}; {len(matrix.types)} types")
    small = matrix.settings.get("scale") == "cifar"
    targets = (CCC1kRecipe if matrix.model == "bundled-lite0" else CCCMiniRecipe if small else CCCRecipe).targets
    for level, types in LEVELS.items():
        if set(types) <= set(matrix.types):
            print(f"{level}: {summarize(matrix, types, targets[level])}")
    print("alone at severity 5: " + ", ".join(f"{name} {matrix.alone(name)[-1]:.1f}" for name in matrix.types))
