"""The code of the guide runs as written, and what the page on writing your own makes keeps every promise."""

from __future__ import annotations

import math
import re
import sys
import types
from pathlib import Path

import method_pages
import pytest
import torch

import tidefast
from tidefast import methods, resets
from tidefast.resets.asr import accumulations, expressions, extents, measures, triggers
from tidefast.testing import CHECKS, small_network

DOCS = Path(__file__).parents[1] / "docs"
METHODS = tidefast.list_methods()
PARTS = {
    "measure": measures.registry.names(),
    "when": triggers.registry.names(),
    "extent": extents.registry.names(),
    "accumulation": accumulations.registry.names(),
    "strength": expressions.strengths.names(),
    "momentum": expressions.momenta.names(),
}
"""As they are without what the page adds."""
REGISTRIES = (methods.base.registry, resets.base.registry, measures.registry, triggers.registry)


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S)


@pytest.fixture(scope="module")
def written():
    """What is there after each block of the page on writing your own, run in turn in one module."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in REGISTRIES:
            patch.setattr(registry, "_classes", dict(registry._classes))
        module = types.ModuleType("page")  # dataclasses look for theirs
        patch.setitem(sys.modules, "page", module)
        after = []
        for block in blocks("extending.md"):
            exec(block, module.__dict__)
            after.append(dict(module.__dict__))
        yield after


def test_what_is_written_passes_every_check(written):
    method, *checked = written
    assert "passed" not in method
    assert [after["passed"] for after in checked] == 5 * [list(CHECKS)]
    assert len({id(after["passed"]) for after in checked}) == 5, "a block did not check what it makes"


def test_what_is_written_has_a_name_everywhere(written):
    assert tidefast.list_methods("margin") == ["margin"]
    assert tidefast.list_resets("overconfident") == ["overconfident"]
    assert written[-1]["policy"] == resets.ASR(measure=written[-1]["Votes"](), when=written[-1]["Patient"](rest=3))


def test_what_is_written_does_what_its_docstring_says(written):
    page = written[-1]
    votes, patient = page["Votes"](), page["Patient"](rest=2)
    logits = torch.eye(10)[:8]
    assert float(votes.of(logits)) == pytest.approx(-math.log(8))
    assert float(votes.of(logits[:1].expand(8, -1))) == 0.0
    assert [patient.fires(-1.0, -2.0, steps) for steps in (1, 2, 3)] == [False, False, True]
    history = tidefast.History()
    sure = tidefast.adapt(small_network(), "source", reset="overconfident", callbacks=[history])
    for contrast in (*[1.0] * 11, 1e4):
        sure(contrast * torch.rand(16, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    assert [record.reset_fraction for record in history] == [0.0] * 11 + [0.5]


def test_the_method_on_the_page_is_that_of_the_example():
    script = (DOCS.parent / "examples" / "04_your_own_method.py").read_text()
    body = blocks("extending.md")[0].partition("    def loss")[2]
    assert body.split("\n", 1)[1].strip() in script


def test_its_table_names_every_part_of_asr():
    text = (DOCS / "extending.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `\w+` \| .* \| (.*) \|$", text, re.M))
    assert {name: sorted(re.findall(r"`([\w-]+)`", cell)) for name, cell in rows.items()} == PARTS


@pytest.mark.parametrize("name", ["index.md", "how-asr-works.md", "choosing.md"])
def test_the_code_of_the_guide_runs_as_written(name):
    images = torch.rand(16, 3, 16, 16)
    names = {"model": small_network(), "images": images, "stream": [images, images], "canaries": images}
    examples = blocks(name)
    assert examples
    for block in examples:
        exec(block, names)
    assert names["logits"].shape == (16, 10)


def test_the_page_on_choosing_names_every_method_under_what_it_needs():
    text = method_pages.filled((DOCS / "choosing.md").read_text())
    text = text.partition("## Source data")[2].partition("## ")[0]
    nothing, *some = re.findall(r"^\| (?:nothing|source|labelled).*?\| (.*) \|$", text, re.M)
    needless = {name for name in METHODS if _needs(name) is None}
    assert set(re.findall(r"`(\w+)`", nothing)) == needless
    assert set(re.findall(r"`(\w+)`", " ".join(some))) == set(METHODS) - needless


def _needs(name: str) -> str | None:
    return methods.base.registry.get(name)().needs_source
