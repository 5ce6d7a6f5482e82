"""The page of a set of runs in a real browser."""

from __future__ import annotations

import pytest

from tidefast import bench
from tidefast.report import runs_page
from tidefast.report.arrangement import Arrangement, read
from tidefast.report.comparison import Comparison

GRID = {
    "stream": "drift:images_per_cell=16",
    "steps": 12,
    "batch": 8,
    "seed": [43, 44],
    "grids": [{"method": "source"}, {"method": "tent", "reset": ["never", "periodic:every=4"]}],
}


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    root = tmp_path_factory.mktemp("runs")
    for experiment in bench.experiments(GRID):
        bench.run(experiment, root / experiment.key)
    arrangement = Arrangement(read([root]))
    path = root / "report.html"
    path.write_text(runs_page.render("Runs", arrangement, Comparison(arrangement).sheets()), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser, address):
    """The page, opened on a telephone; whatever goes wrong on it fails the test at the end."""
    problems: list[str] = []
    opened = browser.new_page(viewport={"width": 360, "height": 800})
    opened.on("console", lambda message: problems.append(message.text))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.goto(address)
    yield opened
    opened.close()
    assert problems == []


def test_the_page_works(page):
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    label = page.locator("tbody th").first.bounding_box()
    assert label["width"] < 180  # the labels stay in place when a table is moved: they must leave room for its values
    first, second = page.locator("[data-plot='accuracy-s0']"), page.locator("[data-plot='accuracy-s1']")
    assert first.locator("path.line").count() == 3
    assert not second.is_visible()
    page.get_by_text("seed 44").click()
    assert second.is_visible()

    # Reading values, in each chart for itself.
    second.scroll_into_view_if_needed()
    box = second.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    said = second.locator(".readout").inner_text()
    assert "batch 6" in said or "batch 7" in said
    assert "Tent + RDumb (every 4)" in said

    # A button hides its contestant in its own chart only.
    page.locator("[data-toggle='s1c1']").click()
    assert not page.locator("path.line[data-track='s1c1']").is_visible()
    assert page.locator("path.line[data-track='s0c1']").is_visible()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 10)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
