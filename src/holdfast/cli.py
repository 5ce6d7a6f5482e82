"""The command `holdfast`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import holdfast
from holdfast.errors import HoldfastError

COMMANDS = (
    *("demo", "run", "sweep", "report", "analyse", "reproduce", "paper"),
    *("serve", "calibrate", "generate", "list", "speed"),
)
"""In the order of `holdfast --help`; each is a module of `holdfast.commands`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
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
    for name in COMMANDS:
        command = import_module(f"holdfast.commands.{name}")
        own = commands.add_parser(
            name, help=command.PURPOSE, description=command.PURPOSE, epilog=f"example: {command.EXAMPLE}"
        )
        command.arguments(own)
        own.set_defaults(run=command.run)
    return parser
