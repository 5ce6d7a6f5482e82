"""The OpenAPI document as a page to read, with nothing in it that runs or comes from elsewhere."""

from __future__ import annotations

import functools
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from tidefast.serve import page


def add_manual(app: FastAPI) -> None:
    """The page, at /docs."""

    @functools.cache
    def content() -> str:
        return manual(app.openapi())

    @app.get("/docs", include_in_schema=False)
    async def read() -> HTMLResponse:
        return HTMLResponse(content(), headers=page.HEADERS)


def manual(document: dict[str, Any]) -> str:
    """A page that tells what an OpenAPI document does.

    >>> page = manual({"info": {"title": "x", "version": "<1>"}, "paths": {}})
    >>> "<h1>x &lt;1&gt;</h1>" in page
    True
    """
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    about = "".join(f"<p>{escape(part)}</p>" for part in info.get("description", "").strip().split("\n\n"))
    calls = "".join(
        _call(verb, address, what) for address, verbs in document["paths"].items() for verb, what in verbs.items()
    )
    forms = "".join(_form(name, what) for name, what in document.get("components", {}).get("schemas", {}).items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f'<link rel="stylesheet" href="page.css"></head><body><main><h1>{title}</h1>{about}'
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>. The <a href=".">live page</a>.</p>'
        f"{calls}<h2>Forms</h2>{forms}</main></body></html>"
    )


def _call(verb: str, address: str, about: dict[str, Any]) -> str:
    """One address and verb."""
    rows = [
        (f"{given['name']} ({given['in']})", _line(_kind(given.get("schema", {})), given.get("description", "")))
        for given in about.get("parameters", ())
    ]
    body = about.get("requestBody", {}).get("content", {})
    rows += [(f"body, {kind}", _kind(what.get("schema", {}))) for kind, what in body.items()]
    rows += [
        (f"answer {status}", _line(", ".join(map(_content, what.get("content", {}).items())), what["description"]))
        for status, what in about.get("responses", {}).items()
    ]
    told = escape(_line(about.get("summary", ""), about.get("description", "")))
    return f"<h2><code>{escape(verb.upper())} {escape(address)}</code></h2><p>{told}</p>{_table(rows)}"


def _form(name: str, about: dict[str, Any]) -> str:
    """What is sent or answered."""
    rows = [
        (field, _line(_kind(what), what.get("description", ""))) for field, what in about.get("properties", {}).items()
    ]
    return f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{escape(about.get("description", ""))}</p>{_table(rows)}'


def _table(rows: list[tuple[str, str]]) -> str:
    cells = "".join(f'<tr><th scope="row">{escape(what)}</th><td>{escape(told)}</td></tr>' for what, told in rows)
    return f'<div class="box"><table>{cells}</table></div>'


def _content(item: tuple[str, dict[str, Any]]) -> str:
    return f"{item[0]} {_kind(item[1].get('schema', {}))}".strip()


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for key in ("anyOf", "allOf", "oneOf"):
        if key in schema:
            return " or ".join(map(_kind, schema[key]))
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "items" in schema:
        return f"list of {_kind(schema['items'])}"
    return str(schema.get("type", schema.get("title", "")))


def _line(*parts: str) -> str:
    return ": ".join(part for part in parts if part)
