"""The command `tidefast`."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import tidefast
from tidefast.core import extras
from tidefast.core.leaving import staying
from tidefast.core.memory import keep_memory
from tidefast.errors import DamagedRunError, TidefastError, UnknownNameError

DEBUG = "TIDEFAST_DEBUG"
"""The environment variable with which errors are shown with their tracebacks."""
COMMANDS = (
    *("demo", "try", "run", "sweep", "report", "analyse", "reproduce", "paper"),
    *("serve", "bake", "calibrate", "generate", "list", "speed"),
)
"""In the order of `tidefast --help`; each is a module of `tidefast.commands`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        options = _parser(_asked(given)).parse_args(given)
        with extras.needed(options.extra, by=f"tidefast {options.command}"):
            keep_memory()
            with staying("what was to be run"):
                return int(options.run(options) or 0)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("tidefast: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        expected = isinstance(error, (TidefastError, ValueError, OSError, ImportError))
        told = str(error) if expected else f"{type(error).__name__}: {error}{_place(error)}"
        print(f"tidefast: error: {' '.join(told.split())}", file=sys.stderr)
        if os.environ.get(DEBUG):
            traceback.print_exc()
        # Where nothing was wrong with what was asked, 1.
        return 2 if expected and not isinstance(error, DamagedRunError) else 1


def _place(error: BaseException) -> str:
    """Where an error was raised that nobody expected."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__) or traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}; {DEBUG}=1 shows how it came to it)"


def _asked(given: Sequence[str]) -> str | None:
    """The command that was asked for; None when it is only about `tidefast` itself."""
    if not given or given[0].startswith("-"):
        return None
    if given[0] not in COMMANDS:
        near = difflib.get_close_matches(given[0], COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UnknownNameError(f"there is no command {given[0]!r}; {hint}tidefast --help lists all")
    return given[0]


def _parser(asked: str | None) -> argparse.ArgumentParser:
    """What `tidefast` takes; only the command that was asked for says what it takes itself."""
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
        if name == asked:
            command.arguments(own)
            own.set_defaults(command=name, run=command.run, extra=command.EXTRA)
    return parser
