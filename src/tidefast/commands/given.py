"""What of a command's options was given; the rest is left to the defaults of whatever takes them."""

from __future__ import annotations

import argparse
from typing import Any


def given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Those of the named options that are not None.

    >>> given(argparse.Namespace(steps=100, seed=None), "steps", "seed")
    {'steps': 100}
    """
    return {name: value for name in names if (value := getattr(options, name)) is not None}
