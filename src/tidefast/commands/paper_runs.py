"""What `tidefast analyse` and `tidefast reproduce` share: where the runs are, and at which scale."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidefast.bench import Experiment
    from tidefast.paper.scale import Setting

_DATA = {
    "imagenet": "validation images of ImageNet, one folder for each class: for CCC",
    "matrix": "accuracies measured for CCC, of tidefast calibrate",
    "ccc-shards": "published CCC shards, instead of --imagenet",
    "imagenet-c": "ImageNet-C",
    "d109": "the cleaned DomainNet",
    "cifar10-c": "CIFAR-10-C",
    "cifar100-c": "CIFAR-100-C",
    "resnet50": "weights of ResNet-50 (default: torchvision's)",
    "vit": "weights of ViT-B/16 (default: torchvision's)",
    "source": "source images, or a file of tidefast.prepare, for methods that need them",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options that both take."""
    parser.add_argument("--runs", default="runs/studies", help="folder of the runs it launches (default %(default)s)")
    parser.add_argument("--jobs", type=int, help="runs at a time (default: one per core)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each run (default %(default)s)")
    parser.add_argument("--model", help="network, by name or module:function (default: the scale's own)")
    parser.add_argument("--data", metavar="PATH", help="images in place of the bundled ones (see tidefast run --help)")
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--mini", action="store_true", help="at the scale of the bundled benchmark (the default)")
    scale.add_argument("--full", action="store_true", help="on the published benchmarks, whose files are given below")
    files = parser.add_argument_group("files, with --full")
    for name, meaning in _DATA.items():
        files.add_argument(f"--{name}", metavar="PATH", help=meaning)


def setting(options: argparse.Namespace) -> Setting:
    """The scale that was asked for."""
    from tidefast.paper.scale import FullScale, MiniScale

    given = {name: getattr(options, name.replace("-", "_")) for name in _DATA}
    given = {name: path for name, path in given.items() if path is not None}
    if not options.full:
        if given:
            raise ValueError(f"--{next(iter(given))} goes with --full")
        return MiniScale(options.model, options.data)
    if options.data is not None:
        raise ValueError("--data goes with --mini: with --full, each benchmark has its own option")
    places = {
        "imagenet": ("ccc", "data"),
        "matrix": ("ccc", "matrix"),
        "ccc-shards": ("ccc", "path"),
        "imagenet-c": ("in-c", "root"),
        "d109": ("in-d109", "root"),
        "cifar10-c": ("cifar10-c", "root"),
        "cifar100-c": ("cifar100-c", "root"),
        "resnet50": ("resnet50", "weights"),
        "vit": ("vit_b_16", "weights"),
        "source": ("source", "path"),
    }
    folders: dict[str, dict[str, Any]] = {}
    for name, path in given.items():
        benchmark, option = places[name]
        folders.setdefault(benchmark, {})[option] = path
    return FullScale(folders, options.model)


def obtain(experiments: Sequence[Experiment], options: argparse.Namespace) -> None:
    """Run what is missing, with a bar."""
    from pathlib import Path

    from tidefast.commands.bar import of_runs
    from tidefast.paper import study

    if not study.missing(experiments, Path(options.runs)):
        return
    with of_runs() as show:
        study.obtain(experiments, Path(options.runs), jobs=options.jobs, threads=options.threads, watch=show)
