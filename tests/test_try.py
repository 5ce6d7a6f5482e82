"""`tidefast try`: somebody's model on their images, four contestants, a page, and the line of code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from tidefast import cli
from tidefast.demo import trial
from tidefast.demo.contestants import pick_contestants


@pytest.mark.slow
def test_it_tells_what_to_use_and_goes_on_where_it_was(tmp_path, capsys):
    command = ["try", "--data", "bundled", "--steps", "24", "--optimizer", "adam:lr=1e-3", "--out", str(tmp_path / "t")]
    assert cli.main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "points more than the model as it is: adapter = tidefast.adapt(model, " in said
    assert 'optimizer="adam:lr=1e-3"' in said
    assert "tidefast serve --model bundled-resnet --method" in said
    page = (tmp_path / "t" / "report.html").read_text()
    assert "Does adapting help? bundled-resnet on bundled, under drift" in page
    assert "What to use" in page
    for label in ("source", "batch statistics", "ROID", "ROID + guard"):
        assert label in page
    assert cli.main(command) == 0  # nothing is run again
    assert " ".join(capsys.readouterr().out.split()).endswith(said[-100:])


@pytest.mark.slow
def test_the_length_is_measured_once_for_a_folder(tmp_path):
    quiet = Console(quiet=True)
    outcome = trial.run("bundled-resnet", "bundled", tmp_path, minutes=0.001, batch=4, console=quiet)
    assert outcome.content.total == trial.SHORTEST
    again = trial.run("bundled-resnet", "bundled", tmp_path, minutes=60.0, batch=4, console=quiet)
    assert again.content.total == trial.SHORTEST


def test_a_model_at_chance_is_refused_before_anything_runs(tmp_path, capsys):
    pixels, labels = np.zeros((40, 32, 32, 3), np.uint8), np.arange(40) % 10
    np.savez(tmp_path / "black.npz", images=pixels, labels=labels)
    assert cli.main(["try", "--data", str(tmp_path / "black.npz"), "--out", str(tmp_path / "t")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "% of 40 clean images, which is chance for 10 classes" in said
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("right", "line"),
    [
        (
            (0.3, 0.5, 0.56, 0.557),
            'tidefast.adapt(model, "roid", reset="guard", source=canaries), with some hundred unlabelled',
        ),
        ((0.3, 0.5, 0.56, 0.54), 'tidefast.adapt(model, "roid"); or over HTTP: tidefast serve --model yours:net'),
        ((0.3, 0.6, 0.56, 0.54), 'tidefast.adapt(model, "batchnorm"); or'),
        ((0.5, 0.4, 0.505, 0.5), "Stay with the model as it is: 50.0 % of this stream right"),
    ],
)
def test_the_guarded_method_is_preferred_unless_another_is_clearly_better(right: tuple[float, ...], line: str):
    contestants = pick_contestants(100, keys=list(trial.CONTESTANTS))
    histories = [SimpleNamespace(key=c.key, overall=share) for c, share in zip(contestants, right, strict=True)]
    made = trial.Trial(Path("out"), model="yours:net", data="a folder")
    advice = trial.recommended(SimpleNamespace(histories=histories), contestants, made, 128)
    assert line in advice
    if "guard" in line:
        assert "--reset guard --canaries 'a folder:size=128'" in advice


def test_bad_input_is_one_clear_line(tmp_path, capsys):
    assert cli.main(["try", "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "t")]) == 2
    assert "no images at" in capsys.readouterr().err
