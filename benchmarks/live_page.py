"""The picture of the live page in docs/production.md, from a real service: python benchmarks/live_page.py

Six streams of bundled images under corruptions that change; the lens of one is covered, another is frozen. Needs the
system's Chromium (or TIDEFAST_BROWSER), takes about two minutes, and gives up after fifteen.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import PIL.Image
from playwright import sync_api
from serving import Connection, Running, adapt, pictures, serving

OUT = Path(__file__).parents[1] / "docs" / "images" / "live-page.png"
WIDTH, BATCH = 1100, 16
STEPS = {"gate-north": 240, "gate-south": 156, "loading-dock-2": 120, "lobby": 200, "store-7/till-3": 180, "yard": 60}
COVERED, FROZEN, FROM = "gate-south", "lobby", 122


async def feed(service: Running) -> None:
    """Images for all streams, in turn; one goes dark from step `FROM` on."""
    shown = {name: pictures(BATCH * steps, seed) for seed, (name, steps) in enumerate(STEPS.items())}
    dark = np.random.default_rng(0).integers(6, 12, (BATCH, 32, 32, 3), dtype=np.uint8)
    connection = Connection(service.port)
    for step in range(max(STEPS.values())):
        for name, steps in STEPS.items():
            start = step + steps - max(STEPS.values())  # all end together
            if start >= 0:
                covered = name == COVERED and start >= FROM
                await adapt(connection, name, dark if covered else shown[name][BATCH * start : BATCH * (start + 1)])
    connection.close()


@contextlib.contextmanager
def opened(address: str, height: int = 200) -> Iterator[sync_api.Page]:
    """A page in the system's Chromium."""
    browser = os.environ.get("TIDEFAST_BROWSER") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser, args=["--headless=new", "--no-sandbox"])
        page = started.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light")
        page.goto(address, timeout=60_000)
        yield page
        started.close()


def photographed(service: Running) -> list[bytes]:
    """The page with all streams, and that of one."""
    taken = []
    with opened(f"{service.address}/") as page:
        page.get_by_role("link", name=COVERED).first.wait_for(timeout=30_000)
        page.wait_for_timeout(500)
        taken.append(page.screenshot(full_page=True))
        page.get_by_role("row").get_by_role("link", name=COVERED).click()
        below = page.get_by_role("heading", name="Momentum")  # what comes from there on is for those who know ASR
        below.wait_for(timeout=30_000)
        page.wait_for_timeout(500)
        box = below.bounding_box()
        clip = None if box is None else {"x": 0.0, "y": 0.0, "width": float(WIDTH), "height": box["y"] - 16}
        taken.append(page.screenshot(full_page=True, clip=clip))
    return taken


def stacked(files: list[bytes], gap: int = 24) -> PIL.Image.Image:
    """One below the other."""
    parts = [PIL.Image.open(io.BytesIO(file)).convert("RGB") for file in files]
    whole = PIL.Image.new("RGB", (WIDTH, sum(part.height + gap for part in parts) - gap), "#d8dce4")
    top = 0
    for part in parts:
        whole.paste(part, (0, top))
        top += part.height + gap
    return whole


def main() -> None:
    """Feed, photograph, write."""
    signal.alarm(900)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "state", "--max-wait", "0", "--canaries", "bundled:part=held", token=None) as service,
    ):
        asyncio.run(feed(service))
        with service.client() as client:
            client.post(f"/v1/streams/{FROZEN}/freeze").raise_for_status()
            client.post("/v1/snapshots").raise_for_status()
        stacked(photographed(service)).save(OUT, optimize=True)
    print(f"{OUT} ({OUT.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
