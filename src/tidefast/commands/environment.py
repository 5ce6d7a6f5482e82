"""Options of a command from environment variables: whatever the parser takes has a variable, by one rule."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping
from typing import Any

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def variables(parser: argparse.ArgumentParser, prefix: str) -> dict[str, argparse.Action]:
    """The variable of each option: --max-batch is PREFIX_MAX_BATCH."""
    options = (action for action in parser._actions if action.option_strings and action.dest != "help")
    return {f"{prefix}_{action.dest.upper()}": action for action in options}


def read_environment(parser: argparse.ArgumentParser, prefix: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """What the variables that are set say, by option; what cannot be used is a ValueError that names the variable.

    An empty variable counts as one that is not set. Several words are separated by spaces or commas.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--max-batch", type=int), parser.add_argument("--verbose", action="store_true")
    >>> read_environment(parser, "DEMO", {"DEMO_MAX_BATCH": "8", "DEMO_VERBOSE": "yes", "PATH": "/bin"})
    {'max_batch': 8, 'verbose': True}
    >>> read_environment(parser, "DEMO", {"DEMO_MAX_BACTH": "8"})
    Traceback (most recent call last):
    ...
    ValueError: DEMO_MAX_BACTH belongs to no option; did you mean DEMO_MAX_BATCH?
    """
    known = variables(parser, prefix)
    given = {}
    for variable, value in sorted(environ.items()):
        if not variable.startswith(f"{prefix}_") or not value.strip():
            continue
        if variable not in known:
            near = difflib.get_close_matches(variable, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"see --help; all variables of {prefix}_ are options"
            raise ValueError(f"{variable} belongs to no option; {hint}")
        action = known[variable]
        given[action.dest] = _converted(variable, action, value.strip())
    return given


def _converted(variable: str, action: argparse.Action, value: str) -> Any:
    if action.nargs == 0:  # a switch
        if value.lower() not in (*_YES, *_NO):
            raise ValueError(f"{variable} must be one of {', '.join((*_YES, *_NO))}, got {value!r}")
        return value.lower() in _YES
    if action.nargs in ("+", "*"):
        return [_one(variable, action, word) for word in re.split(r"[\s,]+", value)]
    return _one(variable, action, value)


def _one(variable: str, action: argparse.Action, word: str) -> Any:
    try:
        converted = action.type(word) if callable(action.type) else word
    except ValueError:
        expected = {int: "a whole number", float: "a number"}.get(action.type, "something else")  # type: ignore[call-overload]  # any callable may be asked for
        raise ValueError(f"{variable} must be {expected}, got {word!r}") from None
    if action.choices is not None and converted not in action.choices:
        raise ValueError(f"{variable} must be among {', '.join(map(str, action.choices))}, got {word!r}")
    return converted


def naming_variables(error: ValueError, prefix: str, given: Mapping[str, Any]) -> ValueError:
    """The error, with the variables that set what it speaks of.

    >>> naming_variables(ValueError("keep must be at least 1, got 0"), "DEMO", {"keep": 0, "port": 1})
    ValueError('keep must be at least 1, got 0 (set by DEMO_KEEP)')
    """
    mentioned = [name for name in given if re.search(rf"\b({name}|{name.replace('_', '-')})\b", str(error))]
    if not mentioned:
        return error
    return ValueError(f"{error} (set by {', '.join(f'{prefix}_{name.upper()}' for name in mentioned)})")
