"""The page and the numbers on it."""

from __future__ import annotations

import base64
import dataclasses
import html.parser
import io
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tidefast import report
from tidefast.bench import metrics
from tidefast.core.measurement import Measurement
from tidefast.report import axes, curves, heatmap, markup, page
from tidefast.report import floor as floors

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def history_of(
    key: str,
    accuracy: np.ndarray,
    total: int | None = None,
    *,
    resets: int = 0,
    asr: bool = False,
    narrow: bool = False,
) -> report.ContestantHistory:
    """A contestant with a given accuracy on each batch of 64; `resets`: every so many batches; `narrow`: one class."""
    rng = np.random.default_rng(len(key))
    steps = len(accuracy)
    shares = np.full((steps, 10), 0.1)
    if narrow:
        weight = np.linspace(0, 1, steps)[:, None]
        shares = (1 - weight) * shares + weight * np.eye(10)[3]
    fraction = np.zeros(steps)
    if resets:
        fraction[resets - 1 :: resets] = rng.uniform(0.5, 1.0, len(fraction[resets - 1 :: resets])) if asr else 1.0
    missing = np.full(steps, np.nan)
    threshold = -2.1 + 0.1 * np.cos(np.arange(steps) / 40)
    return report.ContestantHistory(
        key=key,
        label=key.upper(),
        total=steps if total is None else total,
        correct=np.rint(64 * accuracy),
        count=np.full(steps, 64.0),
        predicted=np.rint(64 * shares).astype(np.int64),
        labels=np.full((steps, 10), 6),
        domains=[f"fog {1 + 4 * k / max(1, steps):.2f}" for k in range(steps)],
        reset_fraction=fraction,
        concentration=threshold + np.where(fraction > 0, 0.03, -0.05) if asr else missing,
        threshold=threshold if asr else missing,
        seconds=np.full(steps, 0.05),
    )


def content_of(steps: int = 400, seen: float = 1.0, samples: int = 18) -> report.ReportData:
    """Six contestants, one of which collapses; `seen`: the share of the stream that they got through."""
    rng = np.random.default_rng(0)
    at = np.arange(int(steps * seen))
    wave = 0.06 * np.sin(at / steps * 20) + rng.normal(0, 0.05, len(at))
    fall = np.clip(1.6 - 2.2 * at / steps, 0, 1)
    histories = [
        history_of("source", 0.2 + wave / 3, steps),
        history_of("tent", 0.1 + (0.4 + wave) * fall, steps, narrow=True),
        history_of("eta", 0.5 + wave - 0.15 * at / steps, steps),
        history_of("eta+rdumb", 0.52 + wave, steps, resets=100),
        history_of("eta+asr", 0.54 + wave, steps, resets=17, asr=True),
        history_of("roid+asr", 0.56 + wave, steps, resets=29, asr=True),
    ]
    shown = [
        report.Sample(
            1 + k * 20, "fog 3", rng.integers(0, 256, (4, 32, 32, 3), np.uint8), ("cat", "dog", "ship", "frog")
        )
        for k in range(samples)
    ]
    return report.ReportData("A test", histories, "source", CLASSES, shown, {"Stream": "made up"})


class Outline(html.parser.HTMLParser):
    """Collects tags with their attributes, and checks that elements nest."""

    VOID = ("meta", "img", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def count(self, tag: str, **wanted: str) -> int:
        return sum(name == tag and wanted.items() <= found.items() for name, found in self.tags)


def test_the_page_has_every_section_and_well_formed_markup():
    outline = Outline(report.render(content_of()))
    for heading in (
        "Results",
        "Accuracy over time",
        "Concentration against its threshold",
        "How deep each reset went",
        "What was predicted",
        "The stream",
    ):
        assert heading in outline.text
    assert outline.count("tr") == 1 + 6
    assert outline.count("th", scope="row") == 6
    assert outline.count("img") == 18
    names = {found["data-plot"] for _, found in outline.tags if "data-plot" in found}
    assert {"accuracy", "concentration-eta+asr", "depth-eta+rdumb", "heat-truth", "heat-tent"} <= names
    assert "concentration-eta" not in names
    assert all(found.get("alt") for tag, found in outline.tags if tag == "img")
    assert all(found.get("aria-label") for tag, found in outline.tags if tag == "svg")


def test_the_page_asks_for_nothing_from_elsewhere():
    page = report.render(content_of())
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", page)
    sources = [found["src"] for _, found in Outline(page).tags if "src" in found]
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)


@pytest.mark.parametrize("steps", [800, 20_000])
def test_the_page_stays_small_however_long_the_stream(steps):
    assert len(report.render(content_of(steps)).encode()) < 2_000_000


def test_text_from_results_cannot_become_markup():
    content = content_of(40)
    evil = "</script><script>alert(1)</script>"
    bad = dataclasses.replace(content.histories[1], label=evil, domains=[evil] * 40)
    samples = [dataclasses.replace(content.samples[0], domain=evil, labels=('"><img src=x>',))]
    content = dataclasses.replace(
        content,
        title=evil,
        histories=[bad, *content.histories[2:]],
        classes=[evil, *CLASSES[1:]],
        samples=samples,
    )
    outline = Outline(report.render(content))
    assert outline.count("script") == 2  # the page's data and its own code
    assert "alert(1)" in outline.text
    assert outline.count("img", src="x") == 0


def test_a_partial_run_says_how_far_each_contestant_got():
    content = content_of(400, seen=0.5)
    content = dataclasses.replace(content, histories=[*content.histories, history_of("late", np.zeros(0), 400)])
    page = Outline(report.render(content)).text
    assert "Partial results" in page
    assert "ETA 200 of 400" in page
    assert "LATE 0 of 400" in page
    assert "Partial" not in Outline(report.render(content_of(400))).text
    assert any("LATE 0" in line for line in report.conclusions(content))


def test_a_page_can_be_made_of_nothing_at_all():
    histories = [history_of("source", np.zeros(0), 400), history_of("eta", np.zeros(0), 400)]
    outline = Outline(report.render(report.ReportData("empty", histories, "source", CLASSES)))
    assert "0 of 400" in outline.text


@pytest.mark.parametrize("length", [1, 2, 7])
def test_a_page_can_be_made_of_very_few_batches(length):
    histories = [
        history_of("source", np.full(length, 0.2), 400),
        history_of("a", np.full(length, 0.5), 400, resets=1, asr=True),
    ]
    assert f"{length} of 400" in Outline(report.render(report.ReportData("short", histories, "source", CLASSES))).text


def test_verdicts_follow_the_lead_over_the_source():
    flat = np.full(100, 0.2)
    falling = np.repeat([0.3, 0.2, 0.1, 0.1], 25)
    late = np.repeat([0.6, 0.5, 0.3, 0.1], 25)  # below the source in the end, and above it over the stream
    fading = np.repeat([0.6, 0.5, 0.4, 0.3], 25)
    histories = [
        history_of("source", flat),
        history_of("falls", falling),
        history_of("late", late),
        history_of("fades", fading),
        history_of("holds", flat + 0.3),
    ]
    content = report.ReportData("", histories, "source", CLASSES)
    rows = {row.key: row for row in report.headline_rows(content)}
    assert [row.verdict for row in rows.values()] == ["reference", "collapsed", "fading", "fading", "holding"]
    assert rows["falls"].last_quarter == pytest.approx(0.1, abs=0.01)
    assert rows["falls"].last_lead == pytest.approx(-0.1, abs=0.02)
    said = " ".join(report.conclusions(content))
    assert "FALLS collapsed: 17.2 % (the model that does not adapt: 20.3 %); 9.4 % in its last quarter" in said
    assert "FADES is fading" in said
    assert "Best over the whole stream, in this one run: HOLDS" in said


def test_the_best_is_not_told_apart_from_whom_the_interval_does_not_tell_it_from():
    noise = np.random.default_rng(0).normal(0, 0.1, 200)
    histories = [
        history_of("source", np.full(200, 0.2)),
        history_of("first", 0.605 + noise),
        history_of("second", 0.6 - noise),
        history_of("third", 0.4 + noise),
    ]
    said = report.conclusions(report.ReportData("", histories, "source", CLASSES))[-1]
    assert said.startswith("Best over the whole stream, in this one run: FIRST")
    assert said.endswith("undecided against SECOND (intervals of 95 %).")


def test_who_fell_and_when_is_told_against_the_floor():
    floor = np.repeat([0.6, 0.5, 0.4, 0.3], 25)  # a stream that grows harder: nobody is to blame for that
    histories = [
        history_of("source", np.full(100, 0.2)),
        history_of("floor", floor),
        history_of("falls", np.where(np.arange(100) < 40, floor, 0.1)),
        history_of("dips", np.where(np.arange(100) // 10 == 4, floor - 0.2, floor)),
        history_of("holds", floor + 0.02),
    ]
    content = report.ReportData("", histories, "source", CLASSES, floor="floor")
    assert [fate.history.key for fate in floors.fates(content)] == ["falls", "dips", "holds"]
    falls, dips, holds = floors.fates(content)
    assert falls.fell == pytest.approx(40, abs=content.window)
    assert (dips.fell, holds.fell, holds.said) == (None, None, "held")
    assert dips.said.startswith("held, below for 1")
    verdicts = [row.verdict for row in report.headline_rows(content)]
    assert verdicts == ["reference", "holding", "fading", "holding", "holding"]
    said = " ".join(report.conclusions(content))
    assert f"FALLS fell at batch {falls.fell}, below FLOOR. Held to the end: DIPS; HOLDS." in said
    page = report.render(content)
    assert "Who fell, when, and who held" in page
    assert page.count('class="fallen"') == 2
    assert "Who fell" not in report.render(report.ReportData("", histories, "source", CLASSES))


@pytest.mark.parametrize("lengths", [(0, 9, 9), (9, 0, 9), (9, 9, 0), (9, 1, 9), (9, 9, 1)])
def test_whoever_is_behind_the_page_can_be_made(lengths):
    keys = ("source", "floor", "eta")
    histories = [history_of(key, np.full(n, 0.2), 9) for key, n in zip(keys, lengths, strict=True)]
    report.render(report.ReportData("", histories, "source", CLASSES, floor="floor"))


def test_what_is_measured_now_and_then_is_drawn_through():
    sparse = np.where(np.arange(100) % 8 == 7, 0.5, np.nan)
    history = dataclasses.replace(
        history_of("guarded", np.full(100, 0.5)),
        measures={"agreement": Measurement("Known answers.", "share")},
        measurements={"agreement": sparse},
    )
    (panel,) = curves.measurements(report.ReportData("", [history], "source", CLASSES), {})
    assert re.search(r'd="M[\d. ]+(L[\d. ]+){11}"', panel)


def test_no_verdict_without_the_source_on_the_same_batches():
    short, whole = history_of("source", np.full(50, 0.2), 100), history_of("eta", np.full(100, 0.1))
    row = report.headline_rows(report.ReportData("", [short, whole], "source", CLASSES))[1]
    assert row.verdict == "too early to tell"
    assert row.lead_text == "-"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.integers(1, 20))
def test_smooth_accuracy_is_the_mean_around_each_batch(values, window):
    history = history_of("x", np.array(values))
    share = history.correct / 64
    for at, smooth in enumerate(history.smooth_accuracy(window)):
        assert smooth == pytest.approx(share[max(0, at - window // 2) : at + (window + 1) // 2].mean())


def test_one_class_alone_counts_as_one_class_in_use():
    counts = np.zeros((5, 10), np.int64)
    counts[:, 3] = 64
    assert metrics.effective_classes(counts) == 1.0
    assert metrics.effective_classes(np.full((5, 10), 6)) == pytest.approx(10.0)


@given(st.integers(1, 300), st.integers(0, 200))
def test_the_heatmap_bins_hold_every_batch_once(seen, more):
    counts = np.random.default_rng(seen).integers(1, 9, (seen, 10))
    shares, edges = heatmap.shares(counts, seen + more)
    assert shares.sum(axis=0) == pytest.approx(1.0)
    assert edges[0] == 0
    assert edges[-1] == seen
    assert len(edges) == shares.shape[1] + 1 <= heatmap.BINS + 1
    sizes = np.diff(edges)
    assert sizes.min() >= 1
    assert (shares * [counts[a:b].sum() for a, b in pairwise(edges)]).sum() == pytest.approx(counts.sum())


def test_thinning_a_long_line_keeps_the_peaks():
    excess = np.full(50_000, -1.0)
    excess[[17, 4_321, 49_999]] = 2.0
    excess[[18, 4_322]] = -3.0  # a threshold that starts anew
    kept = curves._widest(excess, curves.POINTS)
    assert len(kept) <= 2 * curves.POINTS
    assert {17, 18, 4_321, 4_322, 49_999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()


def test_a_stream_of_the_usual_length_is_not_thinned_at_all():
    assert curves._widest(np.random.default_rng(0).normal(size=800), curves.POINTS).tolist() == list(range(800))


def test_sample_images_stand_in_rows_and_a_missing_one_is_black():
    images = np.random.default_rng(0).integers(0, 256, (3, 5, 7, 3), np.uint8)
    address = page.png_address(page.contact_sheet(images, columns=2))
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    assert pixels.shape == (10, 14, 3)
    for at, image in enumerate([*images, np.zeros_like(images[0])]):
        row, column = divmod(at, 2)
        assert (pixels[5 * row : 5 * row + 5, 7 * column : 7 * column + 7] == image).all()


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.integers(2, 8))
def test_ticks_are_few_and_inside(low, width, about):
    ticks = axes.round_ticks(low, low + width, about)
    assert len(ticks) <= about + 2
    assert all(low - 1e-6 <= tick <= low + width + 1e-6 for tick in ticks)


def test_a_line_breaks_where_a_value_is_missing():
    drawn = axes.Axes((0, 10), (0, 1)).line([0, 5, 10, 10], np.array([0.0, np.nan, 1.0, 0.5]))
    assert 'd="M0.0 1000.0M1000.0 0.0L1000.0 500.0"' in drawn


def test_attributes_and_children_are_escaped():
    assert markup.element("a", '<&"', title='"x"') == '<a title="&quot;x&quot;">&lt;&amp;&quot;</a>'
    assert (
        "<"
        not in markup.data({"a": "</script>"}, "x")[len('<script type="application/json" id="x">') : -len("</script>")]
    )


def test_writing_replaces_the_page_whole(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    report.write(content_of(40), path)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
