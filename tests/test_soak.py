"""The soak that compares every answer for hours: it finds what is wrong on purpose, and else nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="left out: httpx is not installed")

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak.py"


def soak(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SOAK), "--streams", "4", "--rate", "15", "--end-every", "6", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
def test_a_soak_of_seconds_compares_steps_gathered_images_and_predictions_and_finds_nothing_wrong():
    done = soak("--minutes", "0.3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| wrong | 0 |" in done.stdout
    for what in ("steps", "gathered", "predictions"):
        assert f"| comparisons: {what} |" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "told"), [("mix", "is none of 1 tried"), ("older", "after a restart")])
def test_a_soak_notices_a_service_that_is_wrong_on_purpose(fault, told):
    done = soak("--minutes", "3", "--fault", fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert any(line.startswith("WRONG") and told in line for line in done.stdout.splitlines()), done.stdout
