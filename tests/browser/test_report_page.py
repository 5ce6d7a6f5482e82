"""The page in a real browser: Chromium from the system's packages, driven by playwright."""

from __future__ import annotations

import pytest

from test_report import content_of
from tidefast import report

WIDTHS, SCHEMES = (360, 768, 1280), ("light", "dark")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    report.write(content_of(), path)
    return path.as_uri()


@pytest.fixture
def visit(browser, address):
    """Opens the page; whatever goes wrong on it, or is requested by it, fails the test at the end."""
    opened, problems = [], []

    def visit(width: int = 1280, scheme: str = "light", where: str = address, **options):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, **options)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request",
            lambda request: problems.append(request.url) if request.url[:5] not in (where[:5], "data:") else None,
        )
        page.goto(where)
        opened.append(context)
        return page

    yield visit
    for context in opened:
        context.close()
    assert problems == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_sticks_out_sideways(visit, width, scheme):
    page = visit(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_partial_page_fits_a_telephone_too(visit, tmp_path):
    path = tmp_path / "partial.html"
    report.write(content_of(400, seen=0.3), path)
    page = visit(360, where=path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert "Partial results" in page.inner_text(".partial")


def test_charts_are_drawn(visit):
    page = visit()
    assert page.locator("[data-plot=accuracy] path.line").count() == 6
    assert page.locator(".strip").count() == 3
    assert page.locator("[data-plot^=concentration] path.threshold").count() == 2
    assert page.locator("[data-plot^=depth] path.stems").count() == 3
    assert page.locator("[data-plot^=heat] path.cell").count() > 20
    for line in page.locator("[data-plot=accuracy] path.line").all():
        box = line.bounding_box()
        assert box["width"] > 800
        assert box["height"] > 10
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth === 64)")


def test_the_dark_scheme_changes_the_colours(visit):
    colour = "getComputedStyle(document.body)"
    looks = [visit(scheme=scheme).evaluate(f"[{colour}.backgroundColor, {colour}.color]") for scheme in SCHEMES]
    assert looks[0][0] != looks[1][0]
    assert looks[0][1] != looks[1][1]
    strokes = [
        visit(scheme=scheme).evaluate("getComputedStyle(document.querySelector('[data-track=tent]')).stroke")
        for scheme in SCHEMES
    ]
    assert strokes[0] != strokes[1]


CONTRAST = """([foreground, background]) => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
    const [r, g, b] = parts.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [a, b] = [light(foreground), light(background)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_and_lines_stand_out_from_the_paper(visit, scheme):
    page = visit(scheme=scheme)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for selector in ("body", ".note", "thead th", ".xtick", ".holding", "h3 small", "figcaption span"):
        colour = page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).color")
        assert page.evaluate(CONTRAST, [colour, paper]) >= 4.5, selector
    for slot in range(12):
        colour = page.evaluate(
            f"""(() => {{ const s = document.querySelector('.swatch'); s.className = 'swatch t{slot}';
            return getComputedStyle(s).backgroundColor; }})()"""
        )
        assert page.evaluate(CONTRAST, [colour, paper]) >= 3.0, slot


def test_a_legend_button_hides_and_shows_its_contestant(visit):
    page = visit()
    button = page.get_by_role("button", name="ETA+RDUMB")
    marks = page.locator("[data-track='eta+rdumb']")
    assert marks.count() == 2  # its line and its strip of resets
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(mark.is_visible() for mark in marks.all())
    assert page.locator("[data-plot=accuracy] path.line:visible").count() == 5
    page.locator("[data-plot=accuracy]").hover()
    assert "ETA+RDUMB" not in page.inner_text("[data-plot=accuracy] .readout")
    button.press("Enter")
    assert all(mark.is_visible() for mark in marks.all())


def test_pointing_at_a_chart_reads_its_values(visit):
    page = visit()
    plot = page.locator("[data-plot=accuracy]")
    readout = plot.locator(".readout")
    assert not readout.is_visible()
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    said = readout.inner_text()
    assert "batch 20" in said  # the middle of 400
    assert "fog 3.0" in said
    assert "TENT" in said
    assert "%" in said
    page.mouse.move(5, 5)
    assert not readout.is_visible()


def test_arrow_keys_read_values_too(visit):
    page = visit()
    plot = page.locator("[data-plot='heat-tent']")
    plot.focus()
    plot.press("Shift+ArrowRight")
    plot.press("ArrowDown")
    said = plot.locator(".readout").inner_text()
    assert "automobile" in said
    assert "largest: cat" in said
    plot.press("Escape")
    assert not plot.locator(".readout").is_visible()


@pytest.mark.parametrize("plot", ["accuracy", "concentration-eta+asr", "depth-eta+rdumb", "heat-source"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_read_outs_stay_on_a_telephone_screen(visit, plot, share):
    page = visit(360, has_touch=True)
    chart = page.locator(f"[data-plot='{plot}']")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + 10)
    said = chart.locator(".readout").bounding_box()
    assert said["x"] >= 0
    assert said["x"] + said["width"] <= 360
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_charts_are_there_without_scripts(visit):
    page = visit(java_script_enabled=False)
    assert page.locator("[data-plot=accuracy] path.line").count() == 6
