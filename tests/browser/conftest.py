"""The browser of these tests: Chromium from the system's packages, driven by playwright."""

from __future__ import annotations

import os
import shutil

import pytest

BROWSER = os.environ.get("TIDEFAST_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="browser tests left out: playwright is not installed")
    if BROWSER is None:
        pytest.skip("browser tests left out: no Chromium found; install the system's package `chromium`")
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield started
        started.close()
