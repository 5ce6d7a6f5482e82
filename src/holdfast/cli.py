"""The command `holdfast`."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast.errors import HoldfastError

_NAMES = {
    "methods": holdfast.list_methods,
    "resets": holdfast.list_resets,
    "streams": holdfast.list_streams,
    "models": holdfast.list_models,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except KeyboardInterrupt:
        print("holdfast: interrupted", file=sys.stderr)
        return 130
    except (HoldfastError, ValueError, OSError, ImportError) as error:
        print(f"holdfast: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast",
        description="Classifiers that adapt to their own drifting test stream and do not collapse.",
        epilog="example: holdfast demo",
    )
    parser.add_argument("--version", action="version", version=f"holdfast {holdfast.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = _command(
        commands,
        "demo",
        "several methods side by side on a drifting stream of the bundled images, and a page that shows what happened",
        "holdfast demo --seed 1 --out runs/second",
    )
    demo.add_argument("--out", default="runs/demo", help="folder of results and report (default %(default)s)")
    demo.add_argument("--steps", type=int, default=1600, help="batches of the stream (default %(default)s)")
    demo.add_argument("--batch", type=int, default=32, help="images per batch (default %(default)s)")
    demo.add_argument("--seed", type=int, default=0, help="of the stream and the methods (default %(default)s)")
    demo.add_argument("--model", default="bundled-resnet", help="registered network (default %(default)s)")
    demo.add_argument("--stream", default="drift", help="registered stream (default %(default)s)")
    demo.add_argument("--full", action="store_true", help="more methods")
    demo.add_argument("--fresh", action="store_true", help="delete earlier results in the folder and start over")
    demo.add_argument("--workers", type=int, default=2, help="methods that run at a time (default %(default)s)")
    demo.set_defaults(run=_demo)

    names = _command(commands, "list", "registered names", "holdfast list methods 'e*'")
    names.add_argument("kind", nargs="?", choices=_NAMES, help="which names (default: all)")
    names.add_argument("pattern", nargs="?", default="*", help="shell pattern (default: everything)")
    names.set_defaults(run=_list)

    speed = _command(
        commands,
        "speed",
        "step time of each method as a ratio to its unavoidable forward and backward passes",
        "holdfast speed --network resnet26-32px --methods eta roid --rounds 15",
    )
    speed.add_argument("--network", action="append", help="network to measure on; may be repeated (default: all)")
    speed.add_argument("--methods", nargs="+", metavar="NAME", help="methods to measure (default: all)")
    speed.add_argument("--rounds", type=int, default=7, help="turns each side gets (default %(default)s)")
    speed.add_argument("--batch", type=int, help="images per batch (default: the network's own)")
    speed.add_argument("--threads", type=int, default=1, help="torch threads (default %(default)s)")
    speed.set_defaults(run=_speed)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, purpose: str, example: str
) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=purpose, description=purpose, epilog=f"example: {example}")


def _list(options: argparse.Namespace) -> None:
    for kind, names in _NAMES.items():
        if options.kind in (None, kind):
            for name in names(options.pattern):
                print(name if options.kind else f"{kind}\t{name}")


def _demo(options: argparse.Namespace) -> int:
    from holdfast import showcase

    outcome = showcase.run(
        options.out,
        steps=options.steps,
        batch=options.batch,
        seed=options.seed,
        full=options.full,
        fresh=options.fresh,
        workers=options.workers,
        stream=options.stream,
        model=options.model,
    )
    return 1 if outcome.failures else 130 if outcome.interrupted else 0


def _show(status: Any, network: str, message: str) -> None:
    status.update(f"{network}: {message}")


def _speed(options: argparse.Namespace) -> None:
    import dataclasses

    import torch
    from rich.console import Console

    from holdfast import speed
    from holdfast.validation import require_choice, require_count

    require_count("--rounds", options.rounds)
    known = speed.methods_measured()
    for name in options.methods or ():
        require_choice("--methods", name, known)
    for network in options.network or ():
        require_choice("--network", network, speed.SHAPES)
    torch.set_num_threads(options.threads)
    console = Console(stderr=True)
    for network in options.network or speed.SHAPES:
        shape = speed.SHAPES[network]
        if options.batch is not None:
            require_count("--batch", options.batch, low=2)
            shape = dataclasses.replace(shape, batch=options.batch)
        with console.status(network) as status:
            rows, bookkeeping = speed.measure(
                shape,
                options.methods or list(known),
                options.rounds,
                progress=functools.partial(_show, status, network),
            )
        print(f"{network}: batch {shape.batch}, {options.threads} thread(s), median of {options.rounds} rounds")
        print("\n".join(speed.table(rows)))
        if bookkeeping is not None:
            print(f"ASR's own bookkeeping, without the source model's forward: {bookkeeping:.2%} of the ETA step")
        print()
