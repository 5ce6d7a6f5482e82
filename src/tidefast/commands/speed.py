"""`tidefast speed`."""

from __future__ import annotations

import argparse
import functools
from typing import Any

PURPOSE = "step time of each method as a ratio to its unavoidable forward and backward passes"
EXAMPLE = "tidefast speed --network resnet26-32px --methods eta roid --rounds 15"
EXTRA = None


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--network", action="append", help="network to measure on; may be repeated (default: all)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="methods to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=7, help="turns each side gets (default %(default)s)")
    parser.add_argument("--batch", type=int, help="images per batch (default: the network's own)")
    parser.add_argument("--device", default="cpu", help="where the network is, such as cuda:0 (default: cpu)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default %(default)s)")


def run(options: argparse.Namespace) -> None:
    """Measure and print one table for each network."""
    import dataclasses

    import torch
    from rich.console import Console

    from tidefast import speed
    from tidefast.core.validation import require_choice, require_count, require_device

    require_count("--rounds", options.rounds)
    device = require_device(options.device)
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
                options.methods or speed.methods_for(shape),
                options.rounds,
                device=device,
                progress=functools.partial(_show, status, network),
            )
        where = "" if options.device == "cpu" else f"on {options.device}, "
        print(f"{network}: {where}batch {shape.batch}, {options.threads} thread(s), median of {options.rounds} rounds")
        print("\n".join(speed.table(rows)))
        if bookkeeping is not None:
            print(f"ASR's own bookkeeping, without the source model's forward: {bookkeeping:.2%} of the ETA step")
        print()


def _show(status: Any, network: str, message: str) -> None:
    status.update(f"{network}: {message}")
