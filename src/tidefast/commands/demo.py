"""`tidefast demo`."""

from __future__ import annotations

import argparse

PURPOSE = "several methods side by side on a drifting stream of the bundled images, and a page that shows what happened"
EXAMPLE = "tidefast demo --seed 1 --out runs/second"
EXTRA = "bench"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--out", default="runs/demo", help="folder of results and report (default %(default)s)")
    parser.add_argument("--steps", type=int, default=1600, help="batches of the stream (default %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="images per batch (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the stream and the methods (default %(default)s)")
    parser.add_argument("--model", default="bundled-resnet", help="registered network (default %(default)s)")
    parser.add_argument("--stream", default="drift", help="registered stream (default %(default)s)")
    parser.add_argument("--device", default="cpu", help="where the network is, such as cuda:0 (default: cpu)")
    parser.add_argument("--full", action="store_true", help="more methods")
    parser.add_argument("--fresh", action="store_true", help="delete earlier results in the folder and start over")
    parser.add_argument("--workers", type=int, default=2, help="methods that run at a time (default %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Run the demonstration; 1 when a method failed, 130 when interrupted."""
    from tidefast import demo

    outcome = demo.run(
        options.out,
        steps=options.steps,
        batch=options.batch,
        seed=options.seed,
        full=options.full,
        fresh=options.fresh,
        workers=options.workers,
        device=options.device,
        stream=options.stream,
        model=options.model,
    )
    return 1 if outcome.failures else 130 if outcome.interrupted else 0
