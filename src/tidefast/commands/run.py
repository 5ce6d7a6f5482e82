"""`tidefast run`."""

from __future__ import annotations

import argparse
from typing import Any

from tidefast.commands import images_of
from tidefast.commands.bar import of_run
from tidefast.commands.given import given

PURPOSE = "one experiment: a method with a reset policy on a stream; the same command again goes on where it stopped"
EXAMPLE = (
    "tidefast run --stream ccc-mini:level=hard --method eta:similarity_margin=0.4 --reset asr --optimizer adam:lr=1e-3 "
    "--steps 3000 --batch 32 --seed 43 --out runs/first"
)
EXTRA = "bench"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("file", nargs="?", help="experiment in YAML; the options below change or replace it")
    part = "; name, name:key=value,key=value (see tidefast list) or module:Class"
    parser.add_argument("--stream", help="the stream" + part)
    images_of.arguments(parser, "images that the stream draws from")
    parser.add_argument("--method", help="the method" + part)
    parser.add_argument("--reset", help="the reset policy" + part + " (default: never)")
    parser.add_argument("--model", help="the network, likewise, or module:function (default: bundled-resnet)")
    parser.add_argument(
        "--optimizer", help="of torch.optim, such as sgd:lr=1e-3 (default: the method's published choice)"
    )
    parser.add_argument("--seed", type=int, help="of the stream and the method (default: 0)")
    parser.add_argument("--steps", type=int, help="batches (default: the whole stream)")
    parser.add_argument("--batch", type=int, help="images per batch (default: the stream's own, mostly 64)")
    parser.add_argument("--window", type=int, help="images per step of batches that are gathered (default: 16)")
    parser.add_argument("--gather", type=int, help="batches of fewer images are gathered (default: 4)")
    parser.add_argument(
        "--source", help="images or prepared file for methods that need source data (default: the stream's)"
    )
    parser.add_argument("--out", required=True, help="folder of the run")
    parser.add_argument("--snapshot-every", type=int, help="batches a kill may cost (default: 100)")
    parser.add_argument("--prefetch", type=int, help="processes that make batches ahead (default: 0)")
    parser.add_argument("--device", help="where the network is, such as cuda:0 (default: cpu)")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's choice)")
    parser.add_argument("--tensorboard", metavar="FOLDER", help="also log there for TensorBoard")
    parser.add_argument("--fresh", action="store_true", help="delete the earlier run in the folder and start over")


def run(options: argparse.Namespace) -> int:
    """Run it; 130 when interrupted, with a snapshot of the last batch."""
    from pathlib import Path

    import torch
    from rich.console import Console

    from tidefast import bench
    from tidefast.bench import assembly, interruption
    from tidefast.bench.results import RESULT
    from tidefast.core.validation import require_count, require_device

    if options.threads is not None:
        require_count("--threads", options.threads)
        torch.set_num_threads(options.threads)
    experiment = _experiment(options)
    assembly.check(experiment)
    require_device(experiment.device)
    console = Console()
    if options.fresh or not Path(options.out, RESULT).is_file():
        clean = assembly.clean_accuracy_of(experiment)
        if clean is not None:
            console.print(f"{experiment.model.label}, not adapted: {clean}", highlight=False, soft_wrap=True)
    with interruption.noticed() as wish, of_run(experiment.label, experiment.steps) as show:
        done = bench.run(
            experiment,
            options.out,
            progress=show,
            should_stop=lambda: wish.count > 0,
            fresh=options.fresh,
            **given(options, "snapshot_every", "prefetch", "tensorboard"),
        )
    console.print(
        f"{experiment.label} on {experiment.stream.label}, seed {experiment.seed}: {100 * done.accuracy:.2f} % over "
        f"{done.batches} of {done.total} batches; {done.folder}",
        highlight=False,
        soft_wrap=True,
    )
    if not done.complete:
        console.print("Interrupted: the same command goes on where it stopped.")
        return 130
    return 0


def _experiment(options: argparse.Namespace) -> Any:
    from pathlib import Path

    from tidefast.bench import Experiment, Specification, text

    fields: dict[str, Any] = {}
    if options.file is not None:
        try:
            content = text.parse(Path(options.file).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ValueError(
                f"there is no experiment file {options.file!r}; a stream is named by --stream {options.file}"
            ) from error
        except ValueError as error:
            raise ValueError(f"{options.file}: {error}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{options.file} holds no experiment: expected lines such as 'stream: drift'")
        fields.update(content)
    parts = ("stream", "method", "reset", "model", "optimizer")
    fields |= given(options, *parts, "seed", "steps", "batch", "window", "gather", "source", "device")
    try:
        of_images = given(options, *images_of.OPTIONS)
        if of_images and fields.get("stream") is not None:
            fields["stream"] = Specification.parse(fields["stream"]).but(**of_images)
        return Experiment.of(fields)
    except (TypeError, ValueError) as error:
        where = "" if options.file is None else f"{options.file}: "
        raise ValueError(f"{where}{error}") from error
