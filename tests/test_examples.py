"""The scripts in examples/ run as they are, and show what they say they show."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
LINES = 60


def above(pattern: str, output: str) -> bool:
    """Whether the first number that a line of the output shows is below the second."""
    found = re.search(pattern, output)
    assert found, f"no line like {pattern!r}"
    low, high = map(float, found.groups())
    return low < high


SHOWN = {
    "01_three_lines": lambda said: above(r"overall +([\d.]+)% +([\d.]+)%", said),
    "02_save_and_resume": lambda said: said.count("bit for bit") == 2 and "DIFFERENT" not in said,
    "03_watch_a_collapse": lambda said: above(r"alone ([\d.]+)%, with ASR ([\d.]+)%", said),
    "04_your_own_method": lambda said: (
        "12 checks passed" in said and above(r"source: ([\d.]+)%\nmargin: ([\d.]+)%", said)
    ),
    "05_your_own_reset_policy": lambda said: (
        "12 checks passed" in said and above(r"(?s)second half ([\d.]+)%.*second half ([\d.]+)%", said)
    ),
    "06_compare_methods": lambda said: above(r"\| Source \| ([\d.]+) \|\n\| BatchNorm \| ([\d.]+)", said),
    "07_fleet": lambda said: all(
        part in said
        for part in (
            "2 of 4 streams are in memory",
            "restored fleet: equal bit for bit",
            "stepped together: equal within rounding",
        )
    ),
    "08_mlflow": lambda said: "MLflow has 5 losses, the last of step 50, and the accuracy" in said,
    "09_wandb": lambda said: "Weights & Biases wrote 1 run of accuracy" in said,
}
OTHERS = {"08_mlflow": "mlflow", "09_wandb": "wandb"}
"""Examples of packages that no extra of this project brings: tried only where they are installed."""


def test_every_example_is_checked_and_short():
    scripts = {path.stem: path for path in FOLDER.glob("*.py")}
    assert scripts.keys() == SHOWN.keys()
    assert all(len(path.read_text().splitlines()) < LINES for path in scripts.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_is_for(name, tmp_path):
    if name in OTHERS:
        pytest.importorskip(OTHERS[name])
    done = subprocess.run(
        [sys.executable, *([] if name in OTHERS else ["-W", "error"]), FOLDER / f"{name}.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert SHOWN[name](done.stdout), done.stdout
    assert name in OTHERS or not list(tmp_path.iterdir()), "it left files behind"


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    cells = json.loads((FOLDER / "first_hour.ipynb").read_text())["cells"]
    lines = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code").splitlines()
    script = tmp_path / "first_hour.py"
    script.write_text("\n".join(line for line in lines if not line.startswith("%")))  # what only a notebook knows
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert above(r"as it was trained ([\d.]+)%, adapting ([\d.]+)%", done.stdout), done.stdout
    assert above(r"alone ([\d.]+)%, with the guard ([\d.]+)%", done.stdout), done.stdout
    assert "resumed: the same bits True" in done.stdout
    baked, trained = re.findall(r"baked ([\d.]+)%, as it was trained ([\d.]+)%", done.stdout)[0]
    assert float(baked) > float(trained), done.stdout
    assert list(tmp_path.iterdir()) == [script], "it left files behind"
