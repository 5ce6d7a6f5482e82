"""`tidefast list`."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import inspect
from typing import Any

PURPOSE = "registered names, and what they stand for"
EXAMPLE = "tidefast list streams 'cin-c*' --long"
EXTRA = None

_KINDS = ("methods", "resets", "streams", "models", "datasets")


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("kind", nargs="?", choices=_KINDS, help="which names (default: all)")
    parser.add_argument("pattern", nargs="?", default="*", help="shell pattern (default: everything)")
    parser.add_argument(
        "--long",
        action="store_true",
        help="also what each is, what it needs, and its options",
    )


def run(options: argparse.Namespace) -> None:
    """Print the names."""
    for kind in _KINDS:
        if options.kind in (None, kind) and kind == "datasets":
            _print_datasets(options)
        elif options.kind in (None, kind):
            registry = _registry(kind)
            for name in registry.names(options.pattern):
                print(name if options.kind else f"{kind}\t{name}")
                if options.long:
                    print("\n".join(f"    {line}" for line in description(registry.get(name))))
            for name, (of, changes) in registry.variants(options.pattern).items():
                print(name if options.kind else f"{kind}\t{name}")
                if options.long:
                    print(f"    {of} with {', '.join(f'{key}={value}' for key, value in changes.items())}")


def _print_datasets(options: argparse.Namespace) -> None:
    """The sets of images that have a name; all others are given by their path."""
    from tidefast.datasets.opening import NAMED

    for name in fnmatch.filter(NAMED, options.pattern.lower()):
        print(name if options.kind else f"datasets\t{name}")
        if options.long:
            print(f"    {NAMED[name].summary}\n      part  all, stream or held, default all")


def description(registered: type) -> list[str]:
    """The first line of a class's docstring, which files it needs, its options, and what it measures."""
    summary = (inspect.getdoc(registered) or "").partition("\n")[0]
    needs = getattr(registered, "needs", "")
    return [summary, *([f"needs {needs}"] if needs else []), *_options(registered), *_measurements(registered)]


def _options(registered: type) -> list[str]:
    from tidefast.core.options import options_of

    if not dataclasses.is_dataclass(registered):
        return []
    options = options_of(registered)
    width = max((len(option.name) for option in options), default=0)
    return [
        f"  {option.name:<{width}}  {', '.join(filter(None, (option.kind, option.legal)))}"
        f"{f', default {option.default}' if option.default else ''}"
        for option in options
    ]


def _measurements(registered: type) -> list[str]:
    measures = getattr(registered, "measures", {})
    return [f"  measures {name}: {what.description}" for name, what in measures.items()]


def _registry(kind: str) -> Any:
    from tidefast import methods, models, resets, streams

    return {
        "methods": methods.base.registry,
        "resets": resets.base.registry,
        "streams": streams.registry,
        "models": models.registry,
    }[kind]
