"""The pages of methods are made of what the methods declare, and of the committed results."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import measured
import method_pages
import pytest

import tidefast
from tidefast import methods, speed
from tidefast.testing import CHECKS, check_adapter, quick_adapter

REGISTRY = methods.base.registry
NAMES = list(method_pages.classes())
WRITTEN = [path.stem for path in (Path(method_pages.DOCS) / "methods").glob("*.md")]


def test_every_method_has_a_page():
    assert sorted(NAMES) == tidefast.list_methods()
    assert set(WRITTEN) <= {*NAMES, "come"}


@pytest.mark.parametrize("name", NAMES)
def test_a_method_declares_what_its_page_needs(name):
    cls = REGISTRY.get(name)
    assert "about" in vars(cls), f"{cls.__name__} has no `about` of its own"
    about = cls.about
    assert about.title.lower() == name
    assert about.adapts
    assert about.equation
    assert about.family != "Others"
    assert (about.paper is None) == (name == "source")
    REGISTRY.get(name)(**cls.quick)
    REGISTRY.get(name)(**cls.busiest)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_every_setting_with_its_default_and_meaning(name):
    cls, page = REGISTRY.get(name), method_pages.page(name)
    assert page.startswith("# ")
    assert not method_pages.MARK.search(page)
    assert "$$" in page
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.M))
    for field in dataclasses.fields(cls):
        if field.init:
            assert rows[field.name].split(" | ")[-1].strip(), f"{cls.__name__}.{field.name} has no docstring"
    if cls.about.paper is not None:
        assert cls.about.paper.title in page


FILE = '''
"""Calm: Tent, with less of it."""

from dataclasses import dataclass
from typing import ClassVar

from tidefast.core.step import Objective
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.tent import Tent


@registry.register("calm")
@dataclass(frozen=True)
class Calm(Tent):
    """L = strength x mean_i H(z_i)."""

    about: ClassVar[About] = About(
        title="Calm",
        family="Entropy",
        adapts="scale and shift",
        equation=r"L = \\frac{s}{B} \\sum_i H(z_i)",
        paper=Paper("Nobody", "On Calm", "nowhere 2030"),
    )

    strength: float = 0.5
    """s."""

    def loss(self, step, state):
        return Objective(self.strength * super().loss(step, state).loss, len(step.logits))
'''


@pytest.fixture
def calm(tmp_path, monkeypatch) -> None:
    """One more file in the package of methods."""
    (tmp_path / "calm.py").write_text(FILE)
    for mapping in (REGISTRY._classes, vars(methods), sys.modules):
        monkeypatch.setitem(mapping, "calm", None)  # so that it is gone afterwards
        del mapping["calm"]
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    monkeypatch.setitem(sys.modules, "tidefast.methods.calm", None)
    del sys.modules["tidefast.methods.calm"]
    REGISTRY.discover("tidefast.methods")


@pytest.mark.usefixtures("calm")
def test_one_file_is_all_that_a_new_method_takes():
    assert tidefast.list_methods("calm") == ["calm"]
    assert len(check_adapter(lambda model: quick_adapter(model, "calm", "asr"))) == len(CHECKS)
    page = method_pages.page("calm")
    for part in (
        "# Calm",
        "L = strength x",
        "$$L = \\frac{s}{B}",
        "| `strength` | 0.5 |",
        "s. |",
        "On Calm",
        "Not measured",
    ):
        assert part in page
    assert "[Calm](methods/calm.md) | scale and shift | - | 1, 1 |" in method_pages.overview()
    assert "`calm`" in method_pages.by_need()
    assert "::: tidefast.methods.calm.Calm" in method_pages.reference()
    assert {"Calm": "methods/calm.md"} in next(f["Entropy"] for f in method_pages.navigation() if "Entropy" in f)
    assert "calm" in speed.methods_measured()


def test_a_written_page_must_say_where_the_parts_go():
    with pytest.raises(ValueError, match="lacks the marks equation, measured"):
        method_pages.filled("# Tent\n\n<!-- methods: facts -->\n\n<!-- methods: settings -->", "tent")
    with pytest.raises(ValueError, match="nothing is known by the mark <!-- methods: weather -->"):
        method_pages.filled("<!-- methods: weather -->")


def test_the_lists_name_every_method():
    table, needs = method_pages.overview(), method_pages.by_need()
    for name in NAMES:
        assert f"](methods/{name}.md)" in table
        assert f"`{name}`" in needs
    listed = [page for family in method_pages.navigation() for pages in family.values() for page in pages]
    assert sorted(address for page in listed for address in page.values()) == sorted(f"methods/{n}.md" for n in NAMES)


def test_every_measured_contestant_is_on_a_page_and_in_the_table():
    results = measured.read()
    titles = [REGISTRY.get(name).about.title for name in NAMES]
    contests = [measured.Contest.of(title, results) for title in [*titles, "COME"]]
    shown = {label for contest in contests if contest is not None for label in contest.labels}
    assert shown == {key[3] for key in results}
    table = measured.overview([*titles, "COME"], results)
    assert all(f"| {label} | " in table for label in shown)
    [line] = [line for line in table.splitlines() if line.startswith("| ETA + ASR | 1,000 | 72.8 (74.7) |")]
    assert line.endswith(" | 31 (every 32) |")  # resets never without the gap between them


def test_a_page_says_how_many_batches_lie_between_resets():
    page = measured.section("ETA", "figure.svg", measured.read())
    assert "| 2 (every 500) |" in next(line for line in page.splitlines() if line.startswith("| ETA + RDumb |"))
