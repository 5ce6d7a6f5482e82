"""Equations as MathML, which browsers draw by themselves: the site loads no script for them, and none from elsewhere.

It reads the part of TeX that the pages use; anything else fails the build.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\s+|.", re.S)
MARKED = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.S)

GREEK = {"alpha", "beta", "gamma", "delta", "eta", "theta", "lambda", "mu", "xi", "rho", "sigma", "tau", "phi", "Theta"}
SIGNS = {
    "in": "∈",
    "le": "≤",
    "ge": "≥",
    "ne": "≠",
    "leftarrow": "←",
    "to": "→",
    "cdot": "·",
    "nabla": "∇",
    "{": "{",
    "}": "}",
    "|": "‖",
    "lVert": "‖",
    "rVert": "‖",
}
FUNCTIONS = {"ln", "log", "exp", "cos", "arg", "max", "min"}
ABOVE_ITS_INDEX = {"sum", "max", "min"}
ACCENTS = {"hat": "^", "bar": "¯", "tilde": "~", "overline": "‾"}
SPACES = {",": 0.17, ";": 0.28, " ": 0.33, "!": -0.17, "quad": 1.0}
WORDS = {"text", "mathrm", "operatorname"}


def mathml(tex: str, *, display: bool) -> str:
    r"""An equation as a MathML element.

    >>> mathml(r"\frac1B", display=False)
    '<math><mfrac><mn>1</mn><mi>B</mi></mfrac></math>'
    """
    tokens = _Tokens(TOKEN.findall(tex.strip()))
    content = _row(tokens, display, until=())
    return f'<math display="block">{content}</math>' if display else f"<math>{content}</math>"


@dataclass
class _Tokens:
    """What is left of an equation."""

    left: list[str]

    def peek(self) -> str | None:
        return self.left[0] if self.left else None

    def take(self, expected: str | None = None) -> str:
        if not self.left or (expected is not None and self.left[0] != expected):
            raise ValueError(
                f"expected {expected or 'more'} in the equation, found {''.join(self.left[:10]) or 'its end'}"
            )
        return self.left.pop(0)

    def skip_space(self) -> None:
        while self.left and self.left[0].isspace():
            self.left.pop(0)

    def words(self) -> str:
        """The text between braces, spaces included."""
        self.skip_space()
        self.take("{")
        text = ""
        while self.peek() != "}":
            text += self.take()
        self.take("}")
        return text


def _row(tokens: _Tokens, display: bool, until: tuple[str, ...]) -> str:
    return "".join(_pieces(tokens, display, until))


def _pieces(tokens: _Tokens, display: bool, until: tuple[str, ...]) -> Iterator[str]:
    """Elements one after the other, each with its indices, up to a token of `until`, which is left."""
    while True:
        tokens.skip_space()
        if tokens.peek() in (None, *until):
            return
        limits = display and tokens.peek() in {f"\\{name}" for name in ABOVE_ITS_INDEX}
        base, lower, upper = _atom(tokens, display), "", ""
        while tokens.peek() in ("_", "^", "'"):
            mark = tokens.take()
            if mark == "_":
                lower = _atom(tokens, display)
            else:
                upper += "<mo>&prime;</mo>" if mark == "'" else _atom(tokens, display)
        yield _indexed(base, lower, f"<mrow>{upper}</mrow>" if upper else "", limits)


def _indexed(base: str, lower: str, upper: str, limits: bool) -> str:
    if lower and upper:
        return f"<msubsup>{base}{lower}{upper}</msubsup>"
    if lower:
        return f"<munder>{base}{lower}</munder>" if limits else f"<msub>{base}{lower}</msub>"
    return f"<msup>{base}{upper}</msup>" if upper else base


def _atom(tokens: _Tokens, display: bool) -> str:
    """One element without its indices."""
    tokens.skip_space()
    token = tokens.take()
    if token == "{":
        content = _row(tokens, display, until=("}",))
        tokens.take("}")
        return f"<mrow>{content}</mrow>"
    if token.startswith("\\"):
        return _command(token[1:], tokens, display)
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token.isalpha():
        return f"<mi>{token}</mi>"
    sign = "&minus;" if token == "-" else escape(token)
    return f'<mo stretchy="false">{sign}</mo>'


def _command(name: str, tokens: _Tokens, display: bool) -> str:
    if name in GREEK:
        return f"<mi>&{name};</mi>"
    if name in SIGNS:
        return f'<mo stretchy="false">{SIGNS[name]}</mo>'
    if name == "sum":
        return "<mo>∑</mo>"
    if name in FUNCTIONS:
        return f'<mo lspace="0.15em" rspace="0.1em">{name}</mo>'
    if name in SPACES:
        return f'<mspace width="{SPACES[name]}em"></mspace>'
    if name in WORDS:
        return _word(name, tokens, display)
    if name in ("frac", "tfrac"):
        above, below = _argument(tokens, display), _argument(tokens, display)
        return f"<mfrac>{above}{below}</mfrac>"
    if name == "sqrt":
        return f"<msqrt>{_argument(tokens, display)}</msqrt>"
    if name in ACCENTS:
        return f'<mover accent="true">{_argument(tokens, display)}<mo>{ACCENTS[name]}</mo></mover>'
    if name == "left":
        opening = tokens.take()
        content = _row(tokens, display, until=("\\right",))
        tokens.take("\\right")
        return f"<mrow><mo>{opening}</mo>{content}<mo>{tokens.take()}</mo></mrow>"
    if name == "big":
        return f'<mo stretchy="false">{tokens.take()}</mo>'
    if name == "begin" and tokens.words() == "cases":
        return _cases(tokens, display)
    raise ValueError(f"\\{name} is not among the TeX that docs/hooks/equations.py knows")


def _word(name: str, tokens: _Tokens, display: bool) -> str:
    tokens.skip_space()
    said = tokens.words()
    if name == "text":
        spaced = escape(said).replace(" ", "&nbsp;")
        return f"<mtext>{spaced}</mtext>"
    return f'<mi mathvariant="normal">{escape(said)}</mi>'


def _argument(tokens: _Tokens, display: bool) -> str:
    """What a command applies to: a group, or the next sign; of a number only its first digit, as in TeX."""
    tokens.skip_space()
    following = tokens.peek() or ""
    if following.isdigit() and len(following) > 1:
        tokens.left[:1] = list(following)
    return _atom(tokens, display)


def _cases(tokens: _Tokens, display: bool) -> str:
    rows, cells = [], []
    while True:
        content = _row(tokens, display, until=("&", "\\\\", "\\end"))
        cells.append(f"<mtd>{content}</mtd>")
        end = tokens.take()
        if end == "&":
            continue
        rows.append("<mtr>" + "".join(cells) + "</mtr>")
        cells = []
        if end == "\\end":
            tokens.words()
            table = "".join(rows)
            return f'<mrow><mo stretchy="true">{{</mo><mtable columnalign="left">{table}</mtable></mrow>'


def on_page_content(html_text: str, page: Any, **_: Any) -> str:
    """The hook of mkdocs: the equations that the Markdown extension `arithmatex` has marked."""

    def drawn(match: re.Match[str]) -> str:
        kind, tex = match.groups()
        if kind == "span":
            return mathml(html.unescape(tex), display=False)
        parts = (mathml(part, display=True) for part in html.unescape(tex).split(r"\qquad"))  # these may wrap
        return '<div class="equation">' + "".join(parts) + "</div>"

    try:
        return MARKED.sub(drawn, html_text)
    except ValueError as error:
        raise ValueError(f"{page.file.src_uri}: {error}") from error
