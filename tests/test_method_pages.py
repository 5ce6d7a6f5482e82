"""The figures and tables of the method pages are those of the committed results."""

from __future__ import annotations

import method_pages
import pytest

import tidefast

TEXTS = method_pages.texts(method_pages.read())


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_a_page_is_up_to_date_with_the_results(path):
    assert path.read_text() == TEXTS[path], "run benchmarks/method_pages.py"


def test_every_method_has_a_page():
    pages = {path.stem for path in method_pages.PAGES.glob("*.md")}
    shared = {"alphabatchnorm": "batchnorm"}
    assert {shared.get(name, name) for name in tidefast.list_methods()} | {"come"} == pages
    assert pages == set(method_pages.CONTESTANTS)
