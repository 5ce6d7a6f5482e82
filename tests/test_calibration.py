"""Measuring an accuracy matrix: what is measured, what is shared, what survives a kill."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tidefast import models
from tidefast.commands import calibrate
from tidefast.corruptions import corrupt
from tidefast.datasets import DatasetError, ImageSet, bundled
from tidefast.streams import Matrix
from tidefast.streams.calibration import CalibrationError, measure, summarize
from tidefast.streams.jpeg import stored
from tidefast.streams.matrix import ASSUMED, INTERPOLATED, MEASURED

TYPES = ("gaussian_noise", "contrast", "fog")
BUNDLED = bundled()
PATIENCE = 120


class Spread(nn.Module):
    """A judge of contrast: class 1 for images of some contrast, class 0 for the rest."""

    def __init__(self, border: float = 0.1) -> None:
        super().__init__()
        self.border = nn.Parameter(torch.tensor(border))
        self.calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        spread = images.flatten(1).std(1) - self.border
        return torch.stack([-spread, spread], dim=1)


def ones(count: int = 40) -> ImageSet:
    return ImageSet(BUNDLED.images[:count], np.ones(count, np.int64), ("flat", "rich"))


def command(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    calibrate.arguments(parser)
    calibrate.run(parser.parse_args(arguments))


def test_a_cell_is_the_accuracy_under_the_first_corruption_and_then_the_second():
    model = models.load("bundled-resnet")
    images = 60
    matrix = measure(model, BUNDLED, TYPES[:2], images=images, seed=3)
    order = np.random.Generator(np.random.Philox(key=np.array([3, 0], np.uint64))).permutation(3000)
    places = np.sort(order[:images])

    def accuracy(*steps: tuple[str, float]) -> float:
        pictures = BUNDLED.images[places]
        for name, severity in steps:
            pictures = corrupt(pictures, name, severity, seed=3, scale="cifar", indices=places)
        with torch.inference_mode():
            logits = model(torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255)
        return float((logits.argmax(1).numpy() == BUNDLED.labels[places]).mean() * 100)

    pair = matrix.pair("gaussian_noise", "contrast")
    assert pair[0, 0] == pytest.approx(accuracy())
    assert pair[8, 0] == pytest.approx(accuracy(("gaussian_noise", 2)))
    assert pair[0, 12] == pytest.approx(accuracy(("contrast", 3)))
    assert pair[16, 12] == pytest.approx(accuracy(("gaussian_noise", 4), ("contrast", 3)))
    backwards = matrix.pair("contrast", "gaussian_noise")
    assert backwards[12, 16] == pytest.approx(accuracy(("contrast", 3), ("gaussian_noise", 4)))
    assert backwards[12, 16] != pair[16, 12]
    assert matrix.cells[0, 1, 4, 4] == MEASURED
    assert matrix.cells[0, 1, 5, 4] == INTERPOLATED
    assert pair[10, 8] == pytest.approx((pair[8, 8] + pair[12, 8]) / 2)
    assert (matrix.count, matrix.settings["scale"], matrix.settings["jpeg"]) == (60, "cifar", None)


def test_jpeg_is_the_last_step_and_by_default_only_for_large_images():
    data = ones(8)
    plain = measure(Spread(), data, TYPES[:2])
    pressed = measure(Spread(), data, TYPES[:2], jpeg=5)
    assert plain.settings["jpeg"] is None
    assert pressed.settings["jpeg"] == 5
    assert not np.array_equal(plain.accuracies, pressed.accuracies, equal_nan=True)
    large = ImageSet(np.kron(data.images[:2], np.ones((1, 4, 4, 1), np.uint8)), np.array([1, 1]), data.classes)
    assert measure(Spread(), large, ["contrast", "pixelate"]).settings["jpeg"] == 85
    assert not np.array_equal(stored(data.images, 5), data.images)


def test_one_corruption_alone_is_measured_once_and_serves_all_pairs():
    model = Spread()
    matrix = measure(model, ones(), TYPES, batch=64)
    assert model.calls == 1 + 3 * 5 + 6 * 25
    assert np.array_equal(matrix.pair("fog", "contrast")[:, 0], matrix.pair("contrast", "fog")[0])
    model = Spread()
    measure(model, ones(), TYPES[:2], stride=2)
    assert model.calls == 1 + 2 * 10 + 2 * 100


def test_a_row_at_chance_is_not_measured_further():
    full, short = Spread(0.12), Spread(0.12)
    data = ones()
    whole = measure(full, data, TYPES)
    part = measure(short, data, TYPES, stop_at_chance=True)
    assert short.calls < full.calls
    assert (part.cells == ASSUMED).any()
    assert np.allclose(part.accuracies[part.cells == ASSUMED], 50.0)
    measured = part.cells == MEASURED
    assert np.array_equal(part.accuracies[measured], whole.accuracies[measured])
    # Under heavy contrast loss nearly every image is "flat".
    assert part.pair("contrast", "fog")[20, 0] < 50
    assert (part.cells[part.types.index("contrast"), part.types.index("fog"), 20, [4, 8, 12, 16, 20]] == ASSUMED).all()


def test_a_row_that_fell_below_a_floor_is_not_measured_further():
    model = Spread(0.12)
    part = measure(model, ones(16), TYPES[:2], stride=5, stop_below=60)
    assert model.calls < 1 + 2 * 4 + 2 * 16
    assert np.allclose(part.accuracies[part.cells == ASSUMED], 50.0)
    assert part.settings["stop_below"] == 60


def test_pairs_that_are_not_measured_multiply():
    model = Spread(0.12)
    matrix = measure(model, ones(16), TYPES, pairs=TYPES[:2], stride=5)
    assert model.calls == 1 + 3 * 4 + 2 * 16
    first, second = TYPES[0], TYPES[2]
    pair, clean = matrix.pair(first, second), matrix.alone(first)[0]
    for i, j in ((5, 5), (10, 20)):
        one, other = matrix.alone(first)[i], matrix.alone(second)[j]
        assert pair[i, j] == pytest.approx(one * other / max(one, other, clean))
        assert matrix.cells[matrix.types.index(first), matrix.types.index(second), i, j] == ASSUMED
    both = measure(Spread(0.12), ones(16), TYPES[:2], stride=5)
    assert np.array_equal(matrix.pair(*TYPES[:2]), both.pair(*TYPES[:2]))
    with pytest.raises(ValueError, match="pairs must be of the types that are measured"):
        measure(model, ones(4), TYPES[:2], pairs=TYPES[1:])


def test_the_model_keeps_its_mode():
    model = Spread().train()
    measure(model, ones(4), TYPES[:2])
    assert model.training


def test_what_was_kept_is_not_measured_again(tmp_path: Path):
    keep = tmp_path / "cells.json"
    whole = measure(Spread(), ones(), TYPES)
    assert not keep.exists()
    model = Spread()

    def stop(done: int, total: int) -> None:
        if done >= 70:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(model, ones(), TYPES, keep=keep, progress=stop)
    kept = len(json.loads(keep.read_text())["cells"])
    assert 70 <= kept < 166
    again = Spread()
    seen = []
    resumed = measure(again, ones(), TYPES, keep=keep, progress=lambda done, total: seen.append((done, total)))
    assert again.calls == 166 - kept
    assert seen[0] == (kept, 166)
    assert seen[-1] == (166, 166)
    whole.write(tmp_path / "a.npz")
    resumed.write(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_cells_of_another_measurement_are_refused(tmp_path: Path):
    keep = tmp_path / "cells.json"
    measure(Spread(), ones(8), TYPES[:2], keep=keep)
    for change, what in (
        ({"model": Spread(0.2)}, "model"),
        ({"data": ones(9)}, "images"),
        ({"seed": 1}, "seed"),
        ({"stride": 2}, "stride"),
        ({"types": TYPES}, "types"),
    ):
        arguments = {"model": Spread(), "data": ones(8), "types": TYPES[:2], "keep": keep} | change
        with pytest.raises(CalibrationError, match=f"another measurement \\(other {what}"):
            measure(**arguments)
    keep.write_text("{")
    with pytest.raises(CalibrationError, match="delete it to start over"):
        measure(Spread(), ones(8), TYPES[:2], keep=keep)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"stride": 3}, "stride must be one of 1, 2, 4, 5, got 3"),
        ({"images": 5000}, "images=5000 is more than the 3000 of the set"),
        ({"images": 0}, "images must be a whole number of at least 1"),
        ({"types": ["fog"]}, "at least two different corruptions"),
        ({"jpeg": 0}, "jpeg must lie in"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict, match: str):
    with pytest.raises(ValueError, match=match):
        measure(Spread(), **arguments)


def test_a_model_for_fewer_classes_is_refused():
    with pytest.raises(DatasetError, match=r"the images have 10 classes .* the model answers with 2"):
        measure(Spread(), BUNDLED, TYPES[:2], images=50)


def test_a_summary_tells_how_near_the_paths_come():
    matrix = Matrix.synthetic()
    summary = summarize(matrix, ("fog", "snow"), 20)
    assert summary.means == pytest.approx({("fog", "snow"): 19.9481, ("snow", "fog"): 19.9481}, abs=5e-5)
    assert (summary.length, summary.spread) == (29, 0)
    assert str(summary).startswith("target 20: 2 paths of 29.0 cells, mean 19.9, spread of path means 0.0")


# --- The command


def test_the_command_measures_and_shows(tmp_path: Path, capsys):
    out = tmp_path / "m.npz"
    command("--out", str(out), "--images", "10", "--types", "fog", "contrast")
    assert [path.name for path in tmp_path.iterdir()] == ["m.npz"]
    shown = capsys.readouterr().out
    first, second, third, *_ = shown.splitlines()
    assert (first, second) == ("bundled-resnet: 91.0 % of 200 clean images", f"wrote {out}")
    assert third.startswith("accuracies of bundled-resnet on 10 images of bundled ")
    command("--show", "bundled")
    shown = capsys.readouterr().out
    assert "hard: target 0: 12 paths of " in shown
    assert "alone at severity 5: gaussian_noise " in shown


def test_the_command_converts_the_published_pickle(tmp_path: Path, capsys):
    import pickle

    source, out = tmp_path / "ccc_accuracy_matrix.pickle", tmp_path / "m.npz"
    source.write_bytes(pickle.dumps({"n1_fog_n2_snow": np.full((21, 21), 40.0), "n1_snow_n2_fog": np.eye(21) * 50}))
    command("--out", str(out), "--from-pickle", str(source))
    assert np.array_equal(Matrix.read(out).pair("snow", "fog"), np.eye(21) * 50)
    assert "unknown images; 2 types" in capsys.readouterr().out


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path):
    with pytest.raises(ValueError, match="--out: say where"):
        command("--images", "10")
    with pytest.raises(ValueError, match="--out: there is no folder"):
        command("--out", str(tmp_path / "none" / "m.npz"))
    with pytest.raises(ValueError, match="model 'nowhere:net': No module named 'nowhere'"):
        command("--out", str(tmp_path / "m.npz"), "--model", "nowhere:net")
    with pytest.raises(ValueError, match=r"model 'os:getcwd' must give a torch\.nn\.Module, got str"):
        command("--out", str(tmp_path / "m.npz"), "--model", "os:getcwd")


RUN = """
import argparse, sys
from tidefast.commands import calibrate as c
p = argparse.ArgumentParser()
c.arguments(p)
c.run(p.parse_args(sys.argv[1:]))
"""
DOZY = """
import os, time
import torch

class Dozy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 10 * 3072).sin().reshape(10, 3072))

    def forward(self, images):
        time.sleep(float(os.environ.get("NAP", "0")))
        return images.flatten(1) @ self.weight.T
"""


@pytest.mark.slow
def test_a_killed_measurement_goes_on_in_another_process_to_the_same_bits(tmp_path: Path, monkeypatch):
    (tmp_path / "dozy.py").write_text(DOZY)
    monkeypatch.syspath_prepend(tmp_path)
    settings = ["--images", "40", "--types", *TYPES[:2], "--model", "dozy:Dozy"]
    command("--out", str(tmp_path / "whole.npz"), *settings)
    out, part = tmp_path / "killed.npz", tmp_path / "killed.npz.part"
    # So slow that it cannot end before it is killed.
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "--out", str(out), *settings], env=os.environ | {"NAP": "5"}, cwd=tmp_path
    )
    deadline = time.monotonic() + PATIENCE
    while not part.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not out.exists()
    assert 0 < len(json.loads(part.read_text())["cells"]) < 61
    command("--out", str(out), *settings, "--workers", "1")
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()
    assert not part.exists()
