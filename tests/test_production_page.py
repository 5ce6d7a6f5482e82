"""The page on production: its examples run as written, its tables name everything there is, its tests exist."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="left out: httpx is not installed")

import serving

from tidefast.commands import serve as command
from tidefast.serve import alarm_kinds, schemas

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "production.md").read_text()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    more = ("--max-wait", "0", "--canaries", "bundled:part=held")
    with serving.serving(tmp_path_factory.mktemp("page") / "state", *more) as running:
        yield running


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


@pytest.mark.skipif(shutil.which("curl") is None, reason="left out: there is no curl")
def test_the_examples_with_curl_run_as_written(service, tmp_path):
    levels = serving.pictures(5)
    for name, image in zip("ab", levels, strict=False):
        PIL.Image.fromarray(image).save(tmp_path / f"{name}.png")
    np.save(tmp_path / "batch.npy", levels)
    (script,) = blocks("bash")
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env={"URL": service.address, "TOKEN": serving.TOKEN, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    assert '"step":2,"batch":{"size":2,"offset":0}' in done.stdout


def test_the_python_examples_run_as_written(service, tmp_path):
    _, ask, watch = blocks("python")  # the first, how to bake, is tested in test_bake.py
    names = {"url": service.address, "token": serving.TOKEN, "state": tmp_path / "state"}
    exec(ask, names)
    assert len(names["classes"]) == 16
    exec(watch, names)
    names["service"].snapshots.close()


def test_every_test_it_names_exists():
    files = [*(ROOT / "tests").glob("*.py"), *(ROOT / "tests" / "browser").glob("*.py")]
    there = {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)}
    named = set(re.findall(r"`(test_\w+)`", PAGE + (ROOT / "docs" / "cluster.md").read_text()))
    assert len(named) > 40
    assert named <= there


def test_it_names_every_option_reason_alarm_and_metric(service):
    parser = argparse.ArgumentParser(add_help=False)
    command.arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    assert options == set(re.findall(r"`(--[\w-]+)`", PAGE.partition("## Settings")[2].partition("## Running")[0]))
    assert set(schemas.STATUS) <= set(re.findall(r"`(\w+)`", PAGE))
    assert set(alarm_kinds.KINDS) <= set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M))
    with service.client() as client:
        types = re.findall(r"# TYPE (\w+) (\w+)", client.get("/metrics").text)
    metrics = {name for name, _ in types}
    assert metrics == set(re.findall(r"`(tidefast_\w+)`", PAGE.partition("## Metrics")[2].partition("The 200")[0]))
