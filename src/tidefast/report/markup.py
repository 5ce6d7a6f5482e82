"""HTML and SVG elements as text, with everything that is not markup escaped."""

from __future__ import annotations

import html
import json
from typing import Any


class Markup(str):
    """Text that is markup already; plain strings are escaped when they are put into an element."""

    __slots__ = ()


def text(content: str) -> Markup:
    """Escape, unless it is markup.

    >>> text("a < b"), text(Markup("<b>"))
    ('a &lt; b', '<b>')
    """
    return content if isinstance(content, Markup) else Markup(html.escape(content, quote=True))


def join(parts: list[Markup], separator: str = "") -> Markup:
    """Several pieces of markup as one."""
    return Markup(separator.join(parts))


def element(tag: str, *children: str, **attributes: str | float | bool | None) -> Markup:
    """An element; `class_` and `for_` lose their underscore, other underscores become hyphens.

    An attribute that is None or False is left out, one that is True has no value.

    >>> element("p", "1 < 2", class_="note", hidden=True)
    '<p class="note" hidden>1 &lt; 2</p>'
    """
    written = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-").replace("viewbox", "viewBox")
        name = "preserveAspectRatio" if name == "preserveaspectratio" else name
        written.append(f" {name}" if value is True else f' {name}="{html.escape(str(value), quote=True)}"')
    opening = f"<{tag}{''.join(written)}>"
    if tag in ("meta", "img", "br"):
        return Markup(opening)
    return Markup(f"{opening}{''.join(text(child) for child in children)}</{tag}>")


def data(content: Any, id_: str) -> Markup:
    """JSON for the page's script; no text in it can end the element early."""
    written = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return element("script", Markup(written), type_="application/json", id_=id_)
