"""Where a command puts its tables: the screen or a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidefast.report.sheet import Sheet


def arguments(parser: argparse.ArgumentParser) -> None:
    """How tables are written, and where to."""
    parser.add_argument(
        "--format",
        choices=("terminal", "markdown", "latex", "csv", "json"),
        default="terminal",
        help="how to write the tables (default %(default)s)",
    )
    parser.add_argument("--out", metavar="FILE", help="write the tables to a file instead of the screen")


def put(sheets: Sequence[Sheet], format_: str, out: str | None) -> None:
    """Write tables to `out`, or print them: as wide as the screen if there is one, else as wide as they are."""
    from tidefast.report import formats

    if out is not None:
        write(out, formats.render(sheets, format_), "--out")
    elif format_ == "terminal" and sys.stdout.isatty():
        from rich.console import Console

        formats.show(sheets, Console())
    else:
        sys.stdout.write(formats.render(sheets, format_))


def write(path: str, text: str, option: str) -> None:
    """Write a file whole, and say so on the error stream, where it disturbs no pipe."""
    from pathlib import Path

    from tidefast.core.files import write_atomically

    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise ValueError(f"{option}: there is no folder {folder}; make it first")
    write_atomically(path, text.encode())
    print(f"wrote {path}", file=sys.stderr)
