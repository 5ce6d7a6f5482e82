"""`tidefast try`: somebody's model on their images, four contestants, a page, and the line of code."""

from __future__ import annotations

import pytest
from rich.console import Console

from tidefast import cli
from tidefast.demo import trial


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
    for label in ("source", "batch statistics", "ROID", "ROID + ASR"):
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


def test_bad_input_is_one_clear_line(tmp_path, capsys):
    assert cli.main(["try", "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "t")]) == 2
    assert "no images at" in capsys.readouterr().err
