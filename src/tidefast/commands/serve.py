"""`tidefast serve`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidefast.commands.environment import naming_variables, read_environment
from tidefast.core import extras
from tidefast.errors import TidefastError

if TYPE_CHECKING:
    from tidefast.serve.settings import Settings

PURPOSE = "an HTTP service: many streams over one model, each adapting on its own; a restart goes on where it stopped"
EXAMPLE = (
    "tidefast serve --model bundled-resnet --method roid --reset asr --optimizer adam:lr=1e-3 --state state; on all "
    "cores of a machine: tidefast serve --cluster --partitions 4 --state cluster-state"
)
EXTRA = "serve"
VARIABLES = "TIDEFAST_SERVE"
"""How the environment variables of the options begin."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes; its defaults are those of `Settings`."""
    from tidefast.serve.alarm_kinds import OF_A_STREAM
    from tidefast.serve.settings import Settings

    part = "; name, name:key=value,key=value (see tidefast list) or module:Class"
    parser.add_argument("--model", help="registered or module:function (default %(default)s)")
    parser.add_argument(
        "--model-name", metavar="NAME", help="of the model in the Open Inference Protocol (default: as --model)"
    )
    parser.add_argument("--weights", metavar="FILE", help="its state dict in .safetensors (default: the model's own)")
    parser.add_argument("--device", help="where it is, such as cuda:0 (default %(default)s)")
    parser.add_argument("--method", help=f"the method{part} (default %(default)s)")
    parser.add_argument("--reset", help="the reset policy (default %(default)s)")
    parser.add_argument(
        "--optimizer", help="of torch.optim, such as sgd:lr=1e-3 (default: the method's published choice)"
    )
    parser.add_argument("--seed", type=int, help="of the method (default: 0, or the state's)")
    parser.add_argument("--window", type=int, help="images per step of gathered ones (default %(default)s)")
    parser.add_argument("--gather", type=int, help="batches of fewer images are gathered (default: as --window)")
    parser.add_argument("--source", help="images or prepared file for methods that need source data")
    parser.add_argument(
        "--canaries",
        metavar="IMAGES",
        help="images that the model knows how to answer, to watch all streams by: a folder, .npy, .npz or data set",
    )
    parser.add_argument(
        "--freeze-on-alarm",
        nargs="+",
        choices=("all", *OF_A_STREAM),
        metavar="KIND",
        help=f"alarms at which their stream stops adapting: all, or among {', '.join(OF_A_STREAM)} (default: none)",
    )
    parser.add_argument("--labels", metavar="FILE", help="names of the classes, one on each line")
    parser.add_argument(
        "--side", type=int, nargs="+", metavar="N", help="height and width of images (default: the first that fit)"
    )
    parser.add_argument("--state", help="folder of the snapshots (default %(default)s)")
    parser.add_argument(
        "--resume",
        choices=("same", "saved", "own"),
        help="where the state has another learning rate or seed: refuse it, go on as saved, or with what is given here "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--snapshot-every", type=float, metavar="S", help="seconds a kill may cost (default %(default)g)"
    )
    parser.add_argument("--keep", type=int, help="snapshots that stay (default %(default)s)")
    parser.add_argument("--host", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, help="0: any that is free (default %(default)s)")
    parser.add_argument(
        "--token-file", metavar="FILE", help="holds the token that clients must send (default: TIDEFAST_TOKEN, if set)"
    )
    parser.add_argument("--workers", type=int, help="streams that step at a time (default %(default)s)")
    parser.add_argument(
        "--together", type=int, metavar="N", help="waiting streams that share a step, at most (default %(default)s)"
    )
    parser.add_argument("--threads", type=int, help="torch threads of each worker (default: the cores are shared out)")
    parser.add_argument("--resident", type=int, help="streams kept in memory (default %(default)s)")
    parser.add_argument("--max-batch", type=int, help="images of a step, or a request (default %(default)g)")
    parser.add_argument(
        "--max-wait", type=float, metavar="S", help="seconds the first waits for more (default %(default)g)"
    )
    parser.add_argument("--queue", type=int, help="images that may wait (default %(default)s)")
    parser.add_argument("--stream-queue", type=int, help="images of one stream that may (default %(default)g)")
    parser.add_argument("--max-streams", type=int, help="(default %(default)s)")
    parser.add_argument("--max-body", type=int, help="bytes of a request (default %(default)s)")
    parser.add_argument("--body-budget", type=int, help="bytes of all requests under way (default %(default)s)")
    parser.add_argument("--max-pixels", type=int, help="of one image (default %(default)s)")
    parser.add_argument("--timeout", type=float, metavar="S", help="of a request (default %(default)g)")
    parser.add_argument("--rate", type=float, help="requests a second of a client; 0: any (default %(default)g)")
    parser.add_argument("--connections", type=int, help="open at a time (default %(default)s)")
    parser.add_argument(
        "--drain", type=float, metavar="S", help="seconds for the rest at the end (default %(default)g)"
    )
    parser.add_argument(
        "--cluster",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="take part in a Ray cluster, and answer for all of its streams: auto for the one that this node is part "
        "of; without an address, a cluster of this machine alone, to use all of its cores (extra ray)",
    )
    parser.add_argument(
        "--partitions",
        type=int,
        metavar="P",
        help="of the cluster's streams, each a process (default: as the state has it, or one for each core)",
    )
    parser.add_argument(
        "--lease",
        type=float,
        metavar="S",
        help="seconds after which a partition that cannot be reached is taken over (default %(default)g)",
    )
    parser.add_argument("--access-log", action="store_true", help="a line for each request")
    parser.add_argument("--log", choices=("text", "json"), help="json: every line an object (default %(default)s)")
    parser.add_argument("--otel", action="store_true", help="traces and metrics by OpenTelemetry, where OTEL_... say")
    parser.add_argument("--verbose", action="store_true", help="log more")
    parser.set_defaults(**{field.name: field.default for field in dataclasses.fields(Settings)})
    parser.epilog = (
        f"{parser.epilog or ''} - Every option may also be set by a variable of the environment, --max-batch by "
        f"{VARIABLES}_MAX_BATCH and so on; switches by 1 or 0. An option on the command line wins."
    ).strip(" -")
    environment = read_environment(parser, VARIABLES, os.environ)
    parser.set_defaults(**environment, environment=environment)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal says to end."""
    import logging

    from tidefast.core.memory import keep_memory

    level = logging.DEBUG if options.verbose else logging.INFO
    if options.log == "json":
        from tidefast.serve.json_log import log_as_json

        log_as_json(level)
    else:
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.INFO if options.verbose else logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    keep_memory()  # once more, now that what hinders it would be in the log
    try:
        return _serve(options)
    except (TidefastError, ValueError, OSError) as error:
        told: Exception = error
        if isinstance(error, ValueError):
            set_so = {name: value for name, value in options.environment.items() if getattr(options, name) == value}
            told = naming_variables(error, VARIABLES, set_so)
        if options.log != "json":
            raise told from error
        logging.getLogger("tidefast").critical("%s", told)
        return 2


def _serve(options: argparse.Namespace) -> int:
    from pathlib import Path

    from tidefast import serve

    names = {field.name for field in dataclasses.fields(serve.Settings)}
    given = {name: value for name, value in vars(options).items() if name in names}
    given["state"] = Path(options.state)
    given["side"] = _side(options.side)
    given["freeze_on_alarm"] = _kinds(options.freeze_on_alarm)
    given["token"] = _token(options.token_file)
    settings = serve.Settings(**given)
    if settings.otel:  # what is missing is told before a model is loaded
        with extras.needed("otel", by="tidefast serve --otel"):
            importlib.import_module("tidefast.serve.telemetry")
    if settings.cluster is None:
        service = serve.open_service(settings)
        return serve.run(service, lambda address: _tell(settings, f"{len(service.fleet)} streams", address))
    from tidefast.serve.cluster.joining import joined

    with joined(settings) as front:
        return serve.run(front, lambda address: _tell(settings, f"{front.partitions} partitions", address))


def _tell(settings: Settings, how_many: str, address: str) -> None:
    """The line that says that it has started."""
    import logging

    what = f"{settings.model}, {settings.method} + {settings.reset}, {how_many}"
    line = f"tidefast serves {what} on {address} (documents at {address}/docs)"
    if settings.log == "json":
        from tidefast.serve.json_log import JsonLogFormatter

        record = logging.LogRecord("tidefast", logging.INFO, "", 0, line, None, None)
        record.fields = {"address": address}
        line = JsonLogFormatter().format(record)
    print(line, flush=True)


def _side(given: list[int] | None) -> tuple[int, int] | None:
    if given is None:
        return None
    if len(given) > 2:
        raise ValueError(f"--side takes one length or two, got {len(given)}")
    return given[0], given[-1]


def _kinds(given: Sequence[str]) -> tuple[str, ...]:
    from tidefast.serve.alarm_kinds import OF_A_STREAM

    return OF_A_STREAM if "all" in given else tuple(given)


def _token(path: str | None) -> str | None:
    from pathlib import Path

    if path is None:
        return os.environ.get("TIDEFAST_TOKEN") or None
    return Path(path).read_text(encoding="utf-8").strip()
