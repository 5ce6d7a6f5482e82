"""The documentation site builds without a warning, needs no network, and leaves out nothing."""

from __future__ import annotations

import doctest
import html.parser
import importlib.util
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("material", reason="left out: the extra `docs` is not installed")
pytest.importorskip("mkdocstrings", reason="left out: the extra `docs` is not installed")

from tidefast import methods, resets
from tidefast.resets.asr import accumulations, expressions, extents, measures, triggers

ROOT = Path(__file__).parents[1]
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "embed": "src",
    "object": "data",
    "link": "href",
}
ELSEWHERE = re.compile(r"^(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Page(html.parser.HTMLParser):
    """What a page loads, which anchors it has, and what it says."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.words: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in LOADED and given.get(LOADED[tag]):
            self.loads.append(str(given[LOADED[tag]]))
        if given.get("id"):
            self.anchors.add(str(given["id"]))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_no_page_loads_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    loads = {(path.name, address) for path in pages for address in Page(path).loads}
    assert any(address.endswith(".js") for _, address in loads)
    assert not [load for load in loads if ELSEWHERE.match(load[1])]


def test_no_style_sheet_loads_anything_from_elsewhere(site):
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        text = sheet.read_text()
        loads = re.findall(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)", text)
        assert not [load for load in loads if ELSEWHERE.match("".join(load))], sheet.name


def test_whatever_a_page_loads_is_there(site):
    for path in site.rglob("*.html"):
        if path.name == "404.html":  # its addresses are those of a site at the root of a server
            continue
        for address in Page(path).loads:
            if not address.startswith("data:"):
                assert (path.parent / address.partition("?")[0]).resolve().is_file(), f"{path.name}: {address}"


def test_every_page_of_ours_is_on_the_site(site):
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    pages += [Path("methods", f"{name}.md") for name in methods.base.registry.names()]
    assert len(pages) > 40
    for page in pages:
        assert (site / page.with_suffix(".html")).is_file(), page


@pytest.mark.parametrize(
    ("page", "part"), [("methods", methods), ("resets", resets)], ids=["every method", "every reset policy"]
)
def test_the_reference_has(site, page, part):
    anchors = Page(site / "api" / f"{page}.html").anchors
    registry = part.base.registry
    classes = [registry.get(name) for name in registry.names()]
    assert len(classes) >= 5
    for cls in classes:
        room = f"tidefast.{page}" if cls.__name__ in part.__all__ else cls.__module__
        assert f"{room}.{cls.__name__}" in anchors


def test_the_reference_has_every_part_of_asr(site):
    anchors = Page(site / "api" / "resets.html").anchors
    parts = (measures.registry, triggers.registry, extents.registry, accumulations.registry)
    classes = [
        registry.get(name)
        for registry in (*parts, expressions.strengths, expressions.momenta)
        for name in registry.names()
    ]
    assert len(classes) > 20
    assert {f"{part.__module__}.{part.__name__}" for part in classes} <= anchors


def test_equations_are_drawn_and_not_left_as_tex(site):
    equations = 0
    for path in (site / "methods").glob("*.html"):
        text = path.read_text()
        equations += text.count("<math")
        prose = re.sub(r"<(code|pre)\b.*?</\1>", "", text, flags=re.S)
        assert "arithmatex" not in prose, path.name
        assert not re.search(r"\\(?:frac|sum|theta|text)\b", prose), path.name
    assert equations > 40


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)  # dataclasses look for theirs
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def equations() -> ModuleType:
    return hook("equations")


@pytest.mark.parametrize("name", ["equations", "docstrings"])
def test_the_examples_in_a_hook_are_right(name):
    result = doctest.testmod(hook(name))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("tex", "expected"),
    [
        (r"\frac12", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"),
        (r"\frac{1}{|S|}", '<mfrac><mrow><mn>1</mn></mrow><mrow><mo stretchy="false">|</mo><mi>S</mi>'),
        (
            r"\sum_{i \in S} x_i",
            '<munder><mo>∑</mo><mrow><mi>i</mi><mo stretchy="false">∈</mo><mi>S</mi></mrow></munder>',
        ),
        (r"z'_i", "<msubsup><mi>z</mi><mi>i</mi><mrow><mo>&prime;</mo></mrow></msubsup>"),
        (r"\sigma^2_{batch}", "<msubsup><mi>&sigma;</mi><mrow><mi>b</mi>"),
        (r"\text{mean of } H", "<mtext>mean&nbsp;of&nbsp;</mtext><mi>H</mi>"),
        (r"\begin{cases} a & b \\ c & d \end{cases}", "<mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr>"),
        (r"a - b < c", '<mo stretchy="false">&minus;</mo><mi>b</mi><mo stretchy="false">&lt;</mo>'),
    ],
)
def test_an_equation_becomes_mathml(equations, tex, expected):
    drawn = equations.mathml(tex, display=True)
    assert expected in drawn
    ElementTree.fromstring(re.sub(r"&(?!lt|gt|amp)\w+;", "x", drawn))  # every element is closed


@pytest.mark.parametrize("tex", [r"\unheard x", r"\frac{1}{2", r"\left( x"])
def test_tex_that_is_not_understood_fails_the_build(equations, tex):
    with pytest.raises(ValueError, match="equation"):
        equations.mathml(tex, display=False)


def test_docstrings_become_lists_and_code():
    text = "Waits.\n\nseconds: how long,\nat most.\nwhy, who: said.\n\nNote: one line alone stays.\n\n>>> 1 + 1\n2"
    assert hook("docstrings").as_markdown(text) == (
        "Waits.\n\n- `seconds`: how long,\n    at most.\n- `why`, `who`: said.\n\nNote: one line alone stays.\n\n"
        "```pycon\n>>> 1 + 1\n2\n```"
    )
