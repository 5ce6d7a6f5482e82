# ruff: noqa: N999 (a file is called as its command is)
"""`tidefast try`."""

from __future__ import annotations

import argparse

from tidefast.commands import images_of
from tidefast.commands.given import given

PURPOSE = "your model on your images under drift, for five minutes: does adapting help, and which line of code does it?"
EXAMPLE = "tidefast try --model yours:net --data folder --out runs/try"
EXTRA = "bench"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--model", default="bundled-resnet", help="registered or module:function (default %(default)s)")
    images_of.arguments(parser, "labelled images", default="bundled")
    parser.add_argument("--out", default="runs/try", help="folder of results and page (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=5.0, help="about so long (default %(default)g)")
    parser.add_argument("--steps", type=int, help="batches of the stream, instead of --minutes")
    parser.add_argument("--batch", type=int, default=16, help="images per batch (default %(default)s)")
    parser.add_argument("--stream", default="drift", help="how the images change (default %(default)s)")
    parser.add_argument("--optimizer", help="such as adam:lr=1e-3 (default: the method's published choice)")
    parser.add_argument("--seed", type=int, default=0, help="of the stream and the methods (default %(default)s)")
    parser.add_argument("--device", default="cpu", help="where the network is, such as cuda:0 (default: cpu)")
    parser.add_argument("--workers", type=int, default=2, help="methods that run at a time (default %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="delete earlier results in the folder and start over")


def run(options: argparse.Namespace) -> int:
    """Try it; 1 when a method failed, 130 when interrupted."""
    from tidefast.demo import trial

    outcome = trial.run(
        options.model,
        options.data,
        options.out,
        minutes=options.minutes,
        steps=options.steps,
        batch=options.batch,
        seed=options.seed,
        stream=options.stream,
        optimizer=options.optimizer,
        images=given(options, "size", "resize", "classes"),
        workers=options.workers,
        device=options.device,
        fresh=options.fresh,
    )
    return 1 if outcome.failures else 130 if outcome.interrupted else 0
