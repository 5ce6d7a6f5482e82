"""`holdfast list`."""

from __future__ import annotations

import argparse

import holdfast

PURPOSE = "registered names"
EXAMPLE = "holdfast list methods 'e*'"

_NAMES = {
    "methods": holdfast.list_methods,
    "resets": holdfast.list_resets,
    "streams": holdfast.list_streams,
    "models": holdfast.list_models,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("kind", nargs="?", choices=_NAMES, help="which names (default: all)")
    parser.add_argument("pattern", nargs="?", default="*", help="shell pattern (default: everything)")


def run(options: argparse.Namespace) -> None:
    """Print the names."""
    for kind, names in _NAMES.items():
        if options.kind in (None, kind):
            for name in names(options.pattern):
                print(name if options.kind else f"{kind}\t{name}")
