"""The command `tidefast`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import tidefast
from tidefast.errors import TidefastError

COMMANDS = (
    *("demo", "run", "sweep", "report", "analyse", "reproduce", "paper"),
    *("serve", "calibrate", "generate", "list", "speed"),
)
"""In the order of `tidefast --help`; each is a module of `tidefast.commands`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("tidefast: interrupted", file=sys.stderr)
        return 130
    except (TidefastError, ValueError, OSError, ImportError) as error:
        print(f"tidefast: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidefast",
        description="Classifiers that adapt to their own drifting test stream and do not collapse.",
        epilog="example: tidefast demo",
    )
    parser.add_argument("--version", action="version", version=f"tidefast {tidefast.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name in COMMANDS:
        command = import_module(f"tidefast.commands.{name}")
        own = commands.add_parser(
            name, help=command.PURPOSE, description=command.PURPOSE, epilog=f"example: {command.EXAMPLE}"
        )
        command.arguments(own)
        own.set_defaults(run=command.run)
    return parser
