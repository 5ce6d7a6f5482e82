"""`tidefast paper`."""

from __future__ import annotations

import argparse

from tidefast.commands import output

PURPOSE = "the published tables: list them, show one, find a method"
EXAMPLE = "tidefast paper 4 --format markdown"
EXTRA = None


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("table", nargs="*", help="numbers or ids of tables (default: the list of all)")
    parser.add_argument("--find", metavar="METHOD", help="show every row with this in its name, such as eta+asr")
    output.arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Show what was asked for."""
    from tidefast.paper import published

    if options.find and options.table:
        raise ValueError("give table numbers or --find, not both")
    if options.find:
        sheets = [published.find(options.find)]
    else:
        sheets = [published.table(which).sheet() for which in options.table] or [published.index()]
    output.put(sheets, options.format, options.out)
