"""The live page: plain files, served as they are."""

from __future__ import annotations

from importlib import resources

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
"""By address: the file, and its type. They hold nothing secret; the page asks for the token when the API does."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""To send with each of them."""


def read(file: str) -> bytes:
    """The content of one of the files.

    >>> read("index.html").startswith(b"<!doctype html>")
    True
    """
    return resources.files(__name__).joinpath(file).read_bytes()
