"""`tidefast serve`."""

from __future__ import annotations

import argparse

PURPOSE = "an HTTP service: many streams over one model, each adapting on its own; a restart goes on where it stopped"
EXAMPLE = "tidefast serve --model bundled-resnet --method roid --reset asr --optimizer adam:lr=1e-3 --state state"
EXTRA = "serve"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    part = "; name, name:key=value,key=value (see tidefast list) or module:Class"
    parser.add_argument("--model", default="bundled-resnet", help="registered or module:function (default %(default)s)")
    parser.add_argument("--weights", metavar="FILE", help="its state dict in .safetensors (default: the model's own)")
    parser.add_argument("--method", default="roid", help=f"the method{part} (default %(default)s)")
    parser.add_argument("--reset", default="asr", help="the reset policy (default %(default)s)")
    parser.add_argument(
        "--optimizer", help="of torch.optim, such as sgd:lr=1e-3 (default: the method's published choice)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the method (default %(default)s)")
    parser.add_argument("--window", type=int, default=16, help="single images per step (default %(default)s)")
    parser.add_argument("--source", help="images or prepared file for methods that need source data")
    parser.add_argument("--labels", metavar="FILE", help="names of the classes, one on each line")
    parser.add_argument(
        "--side", type=int, nargs="+", metavar="N", help="height and width of images (default: the first that fit)"
    )
    parser.add_argument("--state", default="tidefast-state", help="folder of the snapshots (default %(default)s)")
    parser.add_argument(
        "--snapshot-every", type=float, default=30.0, metavar="S", help="seconds a kill may cost (default 30)"
    )
    parser.add_argument("--keep", type=int, default=5, help="snapshots that stay (default %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free (default %(default)s)")
    parser.add_argument(
        "--token-file", metavar="FILE", help="holds the token that clients must send (default: TIDEFAST_TOKEN, if set)"
    )
    parser.add_argument("--workers", type=int, default=1, help="streams that step at a time (default %(default)s)")
    parser.add_argument("--threads", type=int, help="torch threads of each worker (default: the cores are shared out)")
    parser.add_argument("--resident", type=int, default=1024, help="streams kept in memory (default %(default)s)")
    parser.add_argument("--max-batch", type=int, default=64, help="images of a step, or a request (default 64)")
    parser.add_argument(
        "--max-wait", type=float, default=0.01, metavar="S", help="seconds the first waits for more (default 0.01)"
    )
    parser.add_argument("--queue", type=int, default=4096, help="images that may wait (default %(default)s)")
    parser.add_argument("--stream-queue", type=int, default=512, help="images of one stream that may (default 512)")
    parser.add_argument("--max-streams", type=int, default=10_000, help="(default %(default)s)")
    parser.add_argument("--max-body", type=int, default=64 * 2**20, help="bytes of a request (default %(default)s)")
    parser.add_argument("--max-pixels", type=int, default=4096 * 4096, help="of one image (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="of a request (default 30)")
    parser.add_argument(
        "--rate", type=float, default=1000.0, help="requests a second of a client; 0: any (default 1000)"
    )
    parser.add_argument("--connections", type=int, default=1000, help="open at a time (default %(default)s)")
    parser.add_argument(
        "--drain", type=float, default=20.0, metavar="S", help="seconds for the rest at the end (default 20)"
    )
    parser.add_argument("--access-log", action="store_true", help="a line for each request")
    parser.add_argument("--verbose", action="store_true", help="log more")


def run(options: argparse.Namespace) -> int:
    """Serve until a signal says to end."""
    import dataclasses
    import logging
    from pathlib import Path

    from tidefast import serve

    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(logging.INFO if options.verbose else logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    names = {field.name for field in dataclasses.fields(serve.Settings)}
    given = {name: value for name, value in vars(options).items() if name in names}
    given["state"] = Path(options.state)
    given["side"] = _side(options.side)
    settings = serve.Settings(**given, token=_token(options.token_file))
    service = serve.open_service(settings)

    def started(address: str) -> None:
        what = f"{settings.model}, {settings.method} + {settings.reset}, {len(service.fleet)} streams"
        print(f"tidefast serves {what} on {address} (documents at {address}/docs)", flush=True)

    return serve.run(service, started)


def _side(given: list[int] | None) -> tuple[int, int] | None:
    if given is None:
        return None
    if len(given) > 2:
        raise ValueError(f"--side takes one length or two, got {len(given)}")
    return given[0], given[-1]


def _token(path: str | None) -> str | None:
    import os
    from pathlib import Path

    if path is None:
        return os.environ.get("TIDEFAST_TOKEN") or None
    return Path(path).read_text(encoding="utf-8").strip()
