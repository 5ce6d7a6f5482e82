"""The live page in a real browser, on a real service behind a server on the loopback."""

from __future__ import annotations

import dataclasses
import io
import re
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="browser tests left out: httpx is not installed")
pytest.importorskip("uvicorn", reason="left out: the extra `serve` is not installed")
pytest.importorskip("prometheus_client", reason="left out: the extra `serve` is not installed")

import httpx
import uvicorn

from tidefast.core.measurement import Measurement
from tidefast.resets import Reset, Verdict
from tidefast.serve import ImageStatistics, Service, Settings, make_app
from tidefast.testing import small_network

sync_api = pytest.importorskip("playwright.sync_api", reason="browser tests left out: playwright is not installed")
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
expect = sync_api.expect


class Stand:
    """A service on the loopback, in a thread of its own."""

    def __init__(
        self, folder: Path, reset: str | Reset = "asr", canaries: torch.Tensor | None = None, **options: Any
    ) -> None:
        self.reset, self.canaries = reset, canaries
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"
        self.settings = Settings(
            model="small",
            method="eta",
            side=(16, 16),
            state=folder,
            threads=1,
            max_wait=0.0,
            snapshot_every=3600.0,
            **options,
        )
        self.model = small_network()
        self.generator = torch.Generator().manual_seed(0)
        self._server: uvicorn.Server | None = None

    def start(self) -> None:
        self.service = Service(
            self.settings, self.model, {"method": "eta", "reset": self.reset}, canaries=self.canaries
        )
        self.fleet, self.watch = self.service.fleet, self.service.watch
        options = {"log_level": "error", "ws": "none", "timeout_graceful_shutdown": 1}
        self._server = uvicorn.Server(uvicorn.Config(make_app(self.service), "127.0.0.1", self.port, **options))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join(timeout=20)
            assert not self._thread.is_alive()
            self._server = None

    def ask(self, method: str, path: str, **options: Any) -> Any:
        token = self.settings.token
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = httpx.request(method, self.address + path, headers=headers | options.pop("headers", {}), **options)
        answer.raise_for_status()
        return answer.json()

    def feed(self, name: str, steps: int = 1, reset_fraction: float | None = None, **measured: float) -> None:
        """Images for a stream, over HTTP; with a reset or measurements past it, the watch is told of those."""
        for _ in range(steps):
            images = torch.rand(8, 3, 16, 16, generator=self.generator)
            if measured or reset_fraction is not None:
                record = self.fleet.take(name, images).record
                assert record is not None
                seen = ImageStatistics(float(images.mean()), float(images.std()), 0.0, 1.0, len(images))
                fraction = record.reset_fraction if reset_fraction is None else reset_fraction
                measurements = {**record.measurements, **measured}
                record = dataclasses.replace(record, reset_fraction=fraction, measurements=measurements)
                self.watch.step(name, record, latency=record.seconds, images=seen)
                continue
            file = io.BytesIO()
            np.save(file, images.numpy())
            kind = {"Content-Type": "application/x-npy"}
            self.ask("POST", f"v1/streams/{quote(name, safe='')}/adapt", content=file.getvalue(), headers=kind)

    def snapshot(self) -> str:
        return self.ask("POST", "v1/snapshots")["name"]


@pytest.fixture
def make_stand(tmp_path):
    made: list[Stand] = []

    def make(**options: Any) -> Stand:
        made.append(Stand(tmp_path / f"state-{len(made)}", **options))
        made[-1].start()
        return made[-1]

    yield make
    for stand in made:
        stand.stop()


@pytest.fixture
def stand(make_stand) -> Stand:
    """Three streams: one that is well, one that has collapsed, one of a hostile name."""
    made = make_stand()
    made.feed("camera-1", 30)
    made.feed("door/back", 30, concentration=-0.01, threshold=-1.6, reset_fraction=1.0)
    made.feed(HOSTILE, 3)
    return made


@pytest.fixture
def visit(browser, make_stand):  # after the services, so that the tabs close first
    """Opens the page; whatever goes wrong on it, or is requested elsewhere, fails the test at the end."""
    opened, problems = [], []

    def visit(stand: Stand, width: int = 1280, scheme: str = "light", where: str = "", expected: str | None = None):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(15_000)
        tab = context.new_page()

        def complain(text: str) -> None:
            if expected is None or not re.search(expected, text):
                problems.append(text)

        tab.on("console", lambda message: complain(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on(
            "request",
            lambda request: None if request.url.startswith((stand.address, "data:")) else complain(request.url),
        )
        tab.goto(stand.address + where)
        opened.append(context)
        return tab

    yield visit
    for context in opened:
        context.close()
    assert problems == []


def row(tab, name: str):
    return tab.locator("#streams tbody tr").filter(has=tab.get_by_role("link", name=name, exact=True))


def confirm(tab, action: str) -> None:
    tab.get_by_role("button", name=action, exact=True).click()
    dialog = tab.get_by_role("dialog")
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name=action, exact=True).click()
    expect(dialog).not_to_be_visible()


def test_streams_at_a_glance(visit, stand):
    tab = visit(stand)
    expect(tab.locator("#streams tbody tr")).to_have_count(3)
    names = tab.locator("#streams tbody th a").all_inner_texts()
    assert names[0] == "door/back"  # it has alarms
    assert "resets" in tab.inner_text("#alarm-list")
    assert "Roll the stream back" in tab.inner_text("#alarm-list")
    assert "(2) tidefast" in tab.title()
    expect(row(tab, "camera-1").locator("td").nth(1)).to_have_text("30")
    expect(row(tab, "door/back").locator("td").nth(0)).to_have_text("2")
    expect(row(tab, "door/back").locator("td").nth(4)).to_have_text("30 in 30")
    assert row(tab, "door/back").locator("rect.over").count() == 1
    assert row(tab, "camera-1").locator(".spark path.line").count() == 2
    expect(tab.locator("#about")).to_have_text("small · eta · reset never")
    expect(tab.locator("#connection")).to_have_text("live")
    expect(tab.locator("#pages")).not_to_be_visible()  # there is but one


def test_it_follows_what_happens(visit, stand):
    tab = visit(stand)
    expect(row(tab, "camera-1").locator("td").nth(1)).to_have_text("30")
    stand.feed("camera-1", 2)
    stand.feed("late")
    stand.ask("POST", "v1/streams/late/freeze")
    expect(row(tab, "camera-1").locator("td").nth(1)).to_have_text("32")
    expect(row(tab, "late").locator(".mark")).to_have_text("frozen")


def test_one_stream_in_detail(visit, stand):
    stand.feed("camera-1", 10, concentration=-1.5, threshold=-1.6, reset_fraction=0.75)
    tab = visit(stand)
    row(tab, "camera-1").get_by_role("link").click()
    expect(tab.locator("#name")).to_have_text("camera-1")
    expect(tab.locator("#name")).to_be_focused()
    expect(tab.locator("[data-plot]")).to_have_count(7)
    one_line = ("inconsistency", "momentum", "penalty", "latency")
    for key, lines in (("concentration", 2), ("images", 2), *((key, 1) for key in one_line)):
        drawn = tab.locator(f"[data-plot={key}] path.line")
        assert drawn.count() == lines
        assert drawn.first.bounding_box()["width"] > 700
    assert tab.locator("[data-plot=depth] path.stems").get_attribute("d").count("M") >= 10
    assert tab.locator("[data-plot=concentration] path.stems").get_attribute("d").count("M") >= 10

    plot = tab.locator("[data-plot=depth]")
    plot.focus()
    plot.press("ArrowLeft")
    said = plot.locator(".readout").inner_text()
    assert "step 40" in said
    assert "75.0 %" in said
    plot.press("Escape")
    expect(plot.locator(".readout")).not_to_be_visible()

    stand.feed("camera-1", 5)
    expect(tab.locator("#state")).to_contain_text("step 45")
    expect(tab.locator("[data-plot=latency] svg")).to_have_attribute("aria-label", re.compile("over 45 steps"))
    tab.go_back()
    expect(tab.locator("#overview")).to_be_visible()
    expect(tab.locator("#detail")).not_to_be_visible()


@dataclasses.dataclass(frozen=True)
class Surprise(Reset):
    """Measures the number of the step, and something beside it."""

    measures: ClassVar[Mapping[str, Measurement]] = {
        "surprise_so_far": Measurement("How unexpected <b>everything</b> was.", "nats"),
        "usual": Measurement("How unexpected it usually is.", "nats", beside="surprise_so_far"),
        "doubt": Measurement("Share of the images that it doubts.", "share"),
    }

    def observe(self, step, state):
        return Verdict(measurements={"surprise_so_far": 1000.0 * step.number, "usual": 2000.0, "doubt": 0.25})


def test_whatever_a_policy_measures_is_drawn(visit, make_stand):
    stand = make_stand(reset=Surprise())
    stand.feed("camera-1", 4)
    tab = visit(stand, where="#camera-1")
    plot = tab.locator("[data-plot=surprise_so_far]")
    expect(plot.locator("path.line")).to_have_count(2)
    expect(tab.get_by_role("heading", name="Surprise so far, usual")).to_be_visible()
    expect(
        tab.get_by_text("How unexpected <b>everything</b> was. How unexpected it usually is. In nats.")
    ).to_be_visible()
    plot.focus()
    plot.press("ArrowLeft")
    expect(plot.locator(".readout")).to_contain_text("surprise so far4000")
    share = tab.locator("[data-plot=doubt] svg")
    expect(share).to_have_attribute("aria-label", "Doubt over 4 steps; latest: doubt 25.0 %.")
    expect(tab.locator("[data-plot=penalty]")).not_to_be_visible()


def test_what_became_of_known_images_is_shown(visit, make_stand):
    stand = make_stand(reset="never", canaries=torch.rand(32, 3, 16, 16, generator=torch.Generator().manual_seed(1)))
    stand.feed("camera", 2)
    stand.feed("camera", 1, canary_agreement=0.61, canary_reference=0.94, canary_evidence=4.2)
    tab = visit(stand)
    expect(row(tab, "camera").locator(".canaries")).to_have_text("61.0 %, 94.0 %")
    expect(tab.locator("#alarm-list")).to_contain_text("answers to known images changed: 94 % to 61 %")
    tab.get_by_role("row").get_by_role("link", name="camera").click()
    plot = tab.locator("[data-plot=canary_agreement]")
    expect(plot.locator("svg")).to_have_attribute("aria-label", re.compile("latest: canary agreement 61.0 %"))
    expect(plot.locator("svg")).to_have_attribute("aria-label", re.compile("canary reference 94.0 %"))


def test_without_canaries_there_is_no_column_for_them(visit, stand):
    expect(row(visit(stand), "camera-1").locator(".canaries")).not_to_be_visible()


def test_alarms_stand_beside_the_stream_until_it_is_rolled_back(visit, stand):
    tab = visit(stand, where="#door%2Fback")
    expect(tab.locator("#stream-alarms li")).to_have_count(2)
    confirm(tab, "Reset")
    expect(tab.locator("#stream-alarms li")).to_have_count(0)
    expect(tab.locator("#outcome")).to_have_text("Reset to the source model.")
    expect(tab.locator("#state")).to_contain_text("step 0")
    assert stand.fleet["door/back"].step == 0


def test_freezing_and_unfreezing(visit, stand):
    tab = visit(stand, where="#camera-1")
    confirm(tab, "Freeze")
    expect(tab.locator("#state")).to_contain_text("frozen")
    assert stand.fleet.is_frozen("camera-1")
    expect(tab.get_by_role("button", name="Freeze", exact=True)).not_to_be_visible()
    confirm(tab, "Unfreeze")
    expect(tab.locator("#state")).to_contain_text("adapting yes")
    assert not stand.fleet.is_frozen("camera-1")


def test_rolling_back_to_a_chosen_snapshot(visit, stand):
    first = stand.snapshot()
    stand.feed("camera-1", 4)
    second = stand.snapshot()
    stand.feed("camera-1", 4)
    tab = visit(stand, where="#camera-1")
    expect(tab.locator("#state")).to_contain_text("step 38")
    tab.get_by_role("button", name="Roll back").click()
    expect(tab.locator("#snapshot option")).to_have_count(2)
    expect(tab.locator("#snapshot")).to_have_value(second)  # the latest is offered first
    tab.locator("#snapshot").select_option(first)
    tab.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    expect(tab.locator("#state")).to_contain_text("step 30")
    assert stand.fleet["camera-1"].step == 30
    stand.feed("camera-1", 2)
    expect(tab.locator("[data-plot=latency] svg")).to_have_attribute("aria-label", re.compile("over 32 steps"))


def test_a_rollback_overtaken_by_new_steps_redraws_everything(visit, stand):
    def strokes() -> int:
        return sum(record["reset_fraction"] > 0 for record in stand.watch.history("camera-1"))

    snapshot = stand.snapshot()
    stand.feed("camera-1", 4, reset_fraction=0.9)
    tab = visit(stand, where="#camera-1")
    resets = tab.locator("[data-plot=depth] path.stems")
    expect(resets).to_have_attribute("d", re.compile(rf"^(M[^M]+){{{strokes()}}}$"))
    stand.ask("POST", "v1/streams/camera-1/rollback", json={"snapshot": snapshot})
    stand.feed("camera-1", 8, reset_fraction=0.0)  # past where it was, before the page looks again
    stand.feed("camera-1", 1, reset_fraction=0.7)
    expect(tab.locator("[data-plot=latency] svg")).to_have_attribute("aria-label", re.compile("over 39 steps"))
    expect(resets).to_have_attribute("d", re.compile(rf"^(M[^M]+){{{strokes()}}}$"))


def test_what_the_service_refuses_is_said(visit, stand):
    stand.snapshot()
    stand.feed("late", 2)
    tab = visit(stand, where="#late", expected="404")
    confirm(tab, "Roll back")
    expect(tab.locator("#outcome")).to_have_text(
        re.compile(r"^That did not work: the snapshot \d+ has no stream 'late'\.$")
    )
    expect(tab.get_by_role("button", name="Reset")).to_be_enabled()


def test_nothing_happens_without_confirmation(visit, stand):
    tab = visit(stand, where="#camera-1")
    for leave in (lambda: tab.keyboard.press("Escape"), lambda: tab.get_by_role("button", name="Cancel").click()):
        tab.get_by_role("button", name="Reset").click()
        expect(tab.get_by_role("dialog")).to_be_visible()
        expect(tab.get_by_role("button", name="Cancel")).to_be_focused()
        leave()
        expect(tab.get_by_role("dialog")).not_to_be_visible()
    assert stand.fleet["camera-1"].step == 30
    assert b"tidefast_events_total{" not in stand.watch.metrics()


def test_the_keyboard_is_enough(visit, stand):
    tab = visit(stand)
    link = row(tab, "camera-1").get_by_role("link")
    link.focus()
    link.press("Enter")
    expect(tab.locator("#name")).to_be_focused()
    expect(tab.get_by_role("button", name="Freeze", exact=True)).to_be_enabled()
    tab.keyboard.press("Tab")
    expect(tab.get_by_role("button", name="Freeze", exact=True)).to_be_focused()
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("dialog")).to_be_visible()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    expect(tab.locator("#state")).to_contain_text("frozen")


def test_the_focus_stays_while_the_page_updates(visit, stand):
    tab = visit(stand)
    link = row(tab, "camera-1").get_by_role("link")
    link.focus()
    stand.feed("camera-1", 3)
    expect(row(tab, "camera-1").locator("td").nth(1)).to_have_text("33")
    expect(link).to_be_focused()


def test_a_hostile_name_is_text(visit, stand):
    tab = visit(stand)
    expect(row(tab, HOSTILE)).to_be_visible()
    stand.feed(HOSTILE, 20, concentration=-0.01, threshold=-1.6)  # its alarm names it too
    expect(tab.locator("#alarm-list")).to_contain_text(HOSTILE)
    row(tab, HOSTILE).get_by_role("link").click()
    expect(tab.locator("#name")).to_have_text(HOSTILE)
    expect(tab.locator("[data-plot=latency] svg")).to_be_visible()
    tab.get_by_role("button", name="Freeze", exact=True).click()
    expect(tab.get_by_role("dialog")).to_contain_text(HOSTILE)
    tab.get_by_role("dialog").get_by_role("button", name="Freeze", exact=True).click()
    expect(tab.locator("#state")).to_contain_text("frozen")
    assert stand.fleet.is_frozen(HOSTILE)
    assert tab.locator("img, main script").count() == 0
    assert tab.title() != "owned"


def test_the_token_is_asked_for_and_kept_for_the_tab(visit, make_stand):
    stand = make_stand(token="open-sesame-and-more")
    stand.feed("camera-1", 2)
    tab = visit(stand, expected="401|ERR_CONNECTION")
    dialog = tab.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(tab.locator("#token")).to_be_focused()
    expect(tab.locator("#token-refused")).not_to_be_visible()
    tab.keyboard.press("Escape")
    expect(dialog).to_be_visible()
    tab.locator("#token").fill("wrong")
    tab.keyboard.press("Enter")
    expect(tab.locator("#token-refused")).to_be_visible()
    tab.locator("#token").fill("open-sesame-and-more")
    tab.keyboard.press("Enter")
    expect(row(tab, "camera-1")).to_be_visible()
    expect(dialog).not_to_be_visible()
    tab.reload()
    expect(row(tab, "camera-1")).to_be_visible()
    assert tab.evaluate("localStorage.length") == 0
    assert "open-sesame" not in tab.url
    stand.stop()
    stand.settings = dataclasses.replace(stand.settings, token="another-token-of-today")
    stand.start()
    expect(dialog).to_be_visible()
    expect(tab.locator("#token-refused")).to_be_visible()


def test_a_lost_connection_is_shown_and_found_again(visit, stand):
    tab = visit(stand, expected="ERR_CONNECTION|Failed to load resource")
    expect(row(tab, "camera-1")).to_be_visible()
    stand.stop()
    expect(tab.locator("#lost")).to_be_visible()
    expect(tab.locator("#lost")).to_contain_text("Connection lost. What is shown may be old.")
    expect(tab.locator("#connection")).to_have_text("not live")
    expect(tab.locator("#lost")).to_contain_text("Next try in 4 s.")  # it waits longer each time
    expect(row(tab, "camera-1")).to_be_visible()
    stand.start()
    tab.get_by_role("button", name="Try now").click()
    expect(tab.locator("#lost")).not_to_be_visible()
    expect(tab.locator("#connection")).to_have_text("live")
    expect(row(tab, "camera-1").locator("td").nth(1)).to_have_text("30")  # the service went on where it was


def test_hundreds_of_streams_come_in_pages_and_are_found_by_name(visit, make_stand):
    stand = make_stand()
    for number in range(120):
        stand.feed(f"camera-{number:03d}")
    tab = visit(stand)
    expect(tab.locator("#streams tbody tr")).to_have_count(50)
    tab.get_by_role("button", name="Next").click()
    expect(tab.locator("#page-number")).to_have_text("page 2")
    expect(row(tab, "camera-050")).to_be_visible()
    tab.get_by_role("button", name="Next").click()
    expect(tab.locator("#streams tbody tr")).to_have_count(20)
    expect(tab.get_by_role("button", name="Next")).to_be_disabled()
    tab.get_by_role("button", name="Previous").click()
    expect(row(tab, "camera-099")).to_be_visible()
    tab.get_by_label("Name begins with").fill("camera-11")
    expect(tab.locator("#streams tbody tr")).to_have_count(10)
    tab.get_by_label("Name begins with").fill("nobody")
    expect(tab.locator("#nothing")).to_have_text("No stream's name begins like that.")


def test_an_empty_service_and_an_unknown_stream_say_so(visit, make_stand):
    stand = make_stand()
    tab = visit(stand, expected="404")
    expect(tab.locator("#nothing")).to_contain_text("No streams yet")
    tab.goto(stand.address + "#nobody")
    expect(tab.locator("#state")).to_have_text("There is no stream of this name.")
    expect(tab.get_by_role("button", name="Reset")).to_be_disabled()


@pytest.mark.parametrize("width", [360, 768, 1920])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_sideways(visit, stand, width, scheme):
    stand.feed("a-very-long-name-without-any-break" * 5, 2)
    tab = visit(stand, width, scheme)
    expect(tab.locator("#streams tbody tr")).to_have_count(4)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate("document.getElementById('streams').getBoundingClientRect().right") <= width
    tab.goto(stand.address + "#door%2Fback")
    expect(tab.locator("[data-plot=latency]")).to_be_visible()
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.locator("[data-plot=concentration]").scroll_into_view_if_needed()
    for share in (0.02, 0.98):
        box = tab.locator("[data-plot=concentration]").bounding_box()
        tab.mouse.move(box["x"] + share * box["width"], box["y"] + 20)
        said = tab.locator("[data-plot=concentration] .readout").bounding_box()
        assert said["x"] >= 0
        assert said["x"] + said["width"] <= width
    tab.get_by_role("button", name="Reset").click()
    assert tab.get_by_role("dialog").bounding_box()["width"] <= width - 16
    assert tab.evaluate("document.documentElement.scrollWidth") == width


BROKEN = """(root) => {
  const broken = [], walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let text = walk.nextNode(); text; text = walk.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(text);
    const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
    if (lines.size > 1) broken.push(text.data);
  }
  return broken;
}"""
"""The pieces of text that take more than one line."""


@pytest.mark.parametrize("width", [320, 360, 412, 600, 1280])
def test_a_name_breaks_between_its_words_only(visit, make_stand, width):
    stand = make_stand()
    names = [
        "warehouse-north/entrance-camera-17/conveyor-belt-left-lower",
        "3f2b8c1e-9d4a-4f6b-8a7e-5c0d1e2f3a4b",
        "customers.eu-central-1.production.line_4.station_12",
    ]
    for name in names:
        stand.feed(name, 1)
    tab = visit(stand, width)
    expect(tab.locator("#streams tbody tr")).to_have_count(3)
    for name in names:
        found = tab.locator("#streams tbody th a").filter(has_text=re.compile(f"^{re.escape(name)}$"))
        assert found.evaluate(BROKEN) == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.goto(stand.address + "#" + quote(names[0], safe=""))
    expect(tab.locator("#name")).to_have_text(names[0])
    assert tab.locator("#name").evaluate(BROKEN) == []
    tab.get_by_role("button", name="Reset").click()
    assert tab.locator("#confirm-title").evaluate(BROKEN) == []


def test_a_stream_that_an_alarm_froze_says_so(visit, make_stand):
    stand = make_stand(freeze_on_alarm=("concentration",))
    stand.feed("sick", 10, concentration=-0.01, threshold=-1.6)
    tab = visit(stand)
    expect(row(tab, "sick").locator(".mark")).to_have_text("frozen by alarm concentration")
    tab.goto(stand.address + "#sick")
    expect(tab.locator("#state")).to_contain_text("no, frozen by alarm concentration")
    confirm(tab, "Unfreeze")
    expect(tab.locator("#state")).to_contain_text("adapting yes")


CONTRAST = """([foreground, background]) => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
    const [r, g, b] = parts.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [a, b] = [light(foreground), light(background)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


def test_light_and_dark_differ_and_both_can_be_read(visit, stand):
    papers = []
    for scheme in ("light", "dark"):
        tab = visit(stand, scheme=scheme)
        expect(row(tab, "camera-1")).to_be_visible()
        paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        papers.append(paper)
        for selector in ("body", "thead th", "#connection", ".alarms b", "td.bad", "a", "label"):
            colour = tab.evaluate(f"getComputedStyle(document.querySelector('{selector}')).color")
            assert tab.evaluate(CONTRAST, [colour, paper]) >= 4.5, (scheme, selector)
    assert papers[0] != papers[1]
