"""How values are written: `1e-3`, `true`, `[fog, snow]`, `{name: adaptive, delay: 1}`, `hard`.

A part of YAML, without YAML: the command line, Python and files read a value in the same way.
"""

from __future__ import annotations

import json
import re
from typing import Any

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "~", "")),
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_BASED = {2: re.compile(r"[-+]?0b[01_]+"), 8: re.compile(r"[-+]?0[0-7_]+"), 16: re.compile(r"[-+]?0x[0-9a-fA-F_]+")}
_FLOAT = re.compile(
    r"[-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+"
)
_ENDLESS = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_OPEN, _CLOSE = "[{(", "]})"
_RESERVED = "&*!|>%@`#,"


def scalar(text: str) -> bool | int | float | str | None:
    """What a word without quotes says: a number, true or false, nothing, or itself.

    >>> [scalar(text) for text in ("1e-3", "5", "true", "null", "hard", "1_000", "interval:every=512")]
    [0.001, 5, True, None, 'hard', 1000, 'interval:every=512']
    """
    if text in (text.lower(), text.upper(), text.capitalize()) and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    digits = text.replace("_", "")
    if _INTEGER.fullmatch(text):
        return int(digits)
    for base, pattern in _BASED.items():
        if pattern.fullmatch(text) and digits[-1] not in "bx":
            return int(digits, base)
    if _FLOAT.fullmatch(text):
        return float(digits)
    return float(text.replace(".", "")) if _ENDLESS.fullmatch(text) else text


def options(text: str) -> dict[str, Any]:
    """The options of `key=value,key=value`.

    >>> options("corruptions=[fog, snow],visits=2,when={name: adaptive, delay: 1},title='a, b'")
    {'corruptions': ['fog', 'snow'], 'visits': 2, 'when': {'name': 'adaptive', 'delay': 1}, 'title': 'a, b'}
    """
    return _Reader(text).options()


class _Reader:
    """Goes over a text once, from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        while self._at < len(self._text):
            if self._took(","):
                continue
            key, equals, _ = self._text[self._at :].partition("=")
            if not equals or not key.strip() or set(key) & {",", *_OPEN, *_CLOSE}:
                raise self._wrong("expected key=value")
            self._at = start = self._at + len(key) + 1
            options[key.strip()] = self._value(within="")
            if not self._text[start : self._at].strip():
                raise self._wrong(f"{key.strip()}= has no value (nothing is written null)")
            if self._at < len(self._text) and not self._took(","):
                raise self._wrong("expected a comma")
        return options

    def _value(self, within: str) -> Any:
        """The value at hand; `within` is what closes the list or mapping around it."""
        self._skip()
        first = self._text[self._at : self._at + 1]
        if first and first in "'\"":
            value: Any = self._quoted(first)
        elif first == "[":
            value = self._list()
        elif first == "{":
            value = self._mapping()
        else:
            return scalar(self._word(within))
        self._skip()
        return value

    def _word(self, within: str, stops_at_colon: bool = False) -> str:
        """Up to the next comma that stands in no brackets, or the end of what is around it."""
        start = self._at
        around: list[str] = []
        while self._at < len(self._text):
            sign, following = self._text[self._at], self._text[self._at + 1 : self._at + 2]
            if not around and (sign == "," or sign == within):
                break
            if sign == ":" and (not following or following in " ,]}"):
                if stops_at_colon:
                    break
                raise self._wrong("a word has a colon at its end, which may start a mapping only within { }")
            if sign == "#" and self._text[self._at - 1 : self._at] == " ":
                raise self._wrong("put a value with # into quotes")
            if sign in _OPEN:
                around.append(_CLOSE[_OPEN.index(sign)])
            elif sign in _CLOSE and (not around or around.pop() != sign):
                raise self._wrong(f"there is a {sign!r} too many")
            self._at += 1
        if around:
            raise self._wrong(f"there is no {around[-1]!r}")
        word = self._text[start : self._at].strip()
        if word[:1] and word[0] in _RESERVED:
            raise self._wrong(f"put a value that begins with {word[0]!r} into quotes")
        return word

    def _list(self) -> list[Any]:
        self._at += 1
        items: list[Any] = []
        while not self._took("]"):
            items.append(self._value(within="]"))
            self._separated("]")
        return items

    def _mapping(self) -> dict[Any, Any]:
        self._at += 1
        pairs: dict[Any, Any] = {}
        while not self._took("}"):
            self._skip()
            sign = self._text[self._at : self._at + 1]
            quoted = bool(sign) and sign in "'\""
            key = self._quoted(sign) if quoted else scalar(self._word("}", stops_at_colon=True))
            if not self._took(":"):
                raise self._wrong("expected {key: value, key: value}, with a space after each colon")
            pairs[key] = self._value(within="}")
            self._separated("}")
        return pairs

    def _separated(self, closing: str) -> None:
        """What stands between two elements, or before the end."""
        if not self._took(",") and self._text[self._at : self._at + 1] != closing:
            raise self._wrong(f"expected a comma or {closing!r}")

    def _quoted(self, quote: str) -> str:
        pattern = r"'((?:[^']|'')*)'" if quote == "'" else r'"(?:[^"\\]|\\.)*"'
        match = re.compile(pattern).match(self._text, self._at)
        if match is None:
            raise self._wrong(f"there is no second {quote}")
        self._at = match.end()
        if quote == "'":
            return match[1].replace("''", "'")
        try:
            return str(json.loads(match[0]))
        except ValueError as error:
            raise self._wrong(f"{match[0]} is no text in double quotes") from error

    def _skip(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _took(self, sign: str) -> bool:
        """Whether `sign` is next, spaces aside; if so, it is passed over."""
        self._skip()
        if self._text[self._at : self._at + 1] != sign:
            return False
        self._at += 1
        return True

    def _wrong(self, why: str) -> ValueError:
        return ValueError(f"{why}, got {self._text!r}")
