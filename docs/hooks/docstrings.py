"""Docstrings as Markdown: our plain lists of arguments become lists, doctests become code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^`?(?P<names>[a-z_]\w*(?:, [a-z_]\w*)*)`?: (?P<said>.*)$")


def as_markdown(text: str) -> str:
    """A docstring, with its paragraphs of `name: what it is` lines as lists and its doctests in fences.

    >>> print(as_markdown("Waits.\\n\\nseconds: how long.\\nwhy: said in the log."))
    Waits.
    <BLANKLINE>
    - `seconds`: how long.
    - `why`: said in the log.
    """
    return "\n\n".join(_paragraph(paragraph) for paragraph in re.split(r"\n\s*\n", text.strip()))


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if lines[0].startswith(">>>"):
        return f"```pycon\n{text}\n```"
    found = [ARGUMENT.match(line) for line in lines]
    if not found[0] or sum(match is not None for match in found) < 2:
        return text
    return "\n".join(_item(line, match) for line, match in zip(lines, found, strict=True))


def _item(line: str, match: re.Match[str] | None) -> str:
    if match is None:
        return f"    {line.strip()}"
    names = ", ".join(f"`{name}`" for name in match["names"].split(", "))
    return f"- {names}: {match['said']}"


class Plain(griffe.Extension):
    """The hook of mkdocstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for everything that has been read."""
        if obj.is_module:
            obj.docstring = None  # the pages introduce their parts themselves
        elif obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
