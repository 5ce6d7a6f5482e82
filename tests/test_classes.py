"""Images of some of a model's classes: their labels are the model's, or they are refused with what to do."""

from __future__ import annotations

import json
import logging
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tidefast import bench, cli, datasets, models, streams
from tidefast.datasets import DatasetError, ImageSet, ModelClasses
from tidefast.models.images import images_for, source_for
from tidefast.streams.calibration import measure
from tidefast.streams.clean import clean_accuracy

COLOURS = 12
"""The classes of the model: an image of class i has the red value 20 i."""


class Colours(nn.Module):
    """Knows the class of an image by its red, without any training."""

    def __init__(self, wrong: int = 0) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.wrong = wrong

    def forward(self, images):
        red = self.norm(images)[:, 0].mean(dim=(1, 2)) * 255 / 20
        distance = (red[:, None] - torch.arange(COLOURS, device=red.device)).abs()
        return -10 * distance.roll(self.wrong, 1)


def colours() -> nn.Module:
    return Colours().eval()


def wrong() -> nn.Module:
    return Colours(wrong=3).eval()


def make_folder(root: Path, names: dict[str, int]) -> Path:
    for name, label in names.items():
        (root / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (48, 40), (20 * label, 10 * number, 0)).save(root / name / f"{number}.png")
    return root


def one_each(names: tuple[str, ...]) -> ImageSet:
    return ImageSet(np.zeros((len(names), 8, 8, 3), np.uint8), np.arange(len(names)), names)


@pytest.mark.parametrize(
    ("names", "classes", "labels"),
    [
        (("3", "07", "11"), 12, [3, 7, 11]),
        (("n01443537", "n15075141"), 1000, [1, 999]),
        (("n01443537", "n15075141"), 2, [0, 1]),
        (("crow", "newt"), ["newt", "owl", "crow"], [2, 0]),
        (("crow", "newt"), {"crow": 7, "newt": 3}, [7, 3]),
        (("1", "10", "2"), 3, [0, 1, 2]),
    ],
    ids=[
        "indices",
        "WordNet ids",
        "as many as the model has",
        "names in order",
        "mapping",
        "numbers that are no index",
    ],
)
def test_names_of_classes_say_which_output_of_the_model_they_are(names, classes, labels):
    assert datasets.matched(one_each(names), classes).labels.tolist() == labels


def test_what_the_model_calls_its_outputs_is_matched_too():
    assert datasets.matched(one_each(("crow", "newt")), 3, ("newt", "owl", "crow")).labels.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("names", "classes", "message"),
    [
        (
            ("crow", "newt"),
            12,
            r"2 classes of the images \('crow', 'newt'\) cannot be matched with the 12 .*classes.txt",
        ),
        (("n01443537", "crow"), 1000, "cannot be matched with the 1000"),
        (("crow", "newt", "owl"), 2, "have 3 classes .* the model answers with 2"),
        (("crow", "newt"), ["newt", "owl"], r"1 of the 2 classes .*'crow'"),
        (("crow",), ["newt", "newt"], "'newt' twice"),
        (("crow",), {"crow": -1}, "an index of its own, 0 or more"),
        (("crow", "newt"), {"crow": 1, "newt": 1}, "an index of its own"),
        (("crow",), "nowhere.txt", r"no class names at 'nowhere\.txt'"),
    ],
)
def test_classes_that_cannot_be_matched_are_refused_with_a_reason(names, classes, message):
    with pytest.raises(DatasetError, match=message):
        datasets.matched(one_each(names), classes)


def test_matched_labels_are_taken_for_the_models_from_then_on():
    data = datasets.matched(one_each(("crow", "newt")), {"crow": 7, "newt": 3})
    assert isinstance(data.classes, ModelClasses)
    part = datasets.part_of(data, "stream")
    assert datasets.matched(part, 12).labels.tolist() == part.labels.tolist()


@pytest.mark.parametrize("content", ["newt\nowl\n\ncrow\n", '{"crow": 2, "newt": 0}', '{"0": "newt", "2": "crow"}'])
def test_a_file_of_class_names_is_read_in_each_form(content, tmp_path):
    file = tmp_path / ("names.json" if content.startswith("{") else "names.txt")
    file.write_text(content)
    assert datasets.matched(one_each(("crow", "newt")), file).labels.tolist() == [2, 0]


def test_a_file_beside_the_class_folders_needs_no_option(tmp_path):
    root = make_folder(tmp_path / "photos", {"crow": 2, "newt": 0})
    (root / "classes.txt").write_text("newt\nowl\ncrow\n")
    data = datasets.open(root, size=32)
    assert sorted(set(data.labels.tolist())) == [0, 2]
    with pytest.raises(DatasetError, match=r"names 3 classes, the model has 12"):
        datasets.open(root, size=32, classes=12)


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_runs_calibration_and_streams_give_images_the_labels_of_the_model(kind, tmp_path):
    data = make_folder(tmp_path / "photos", {"3": 3, "7": 7, "11": 11})
    if kind == "npz":
        opened = datasets.open(data, size=32)[np.arange(12)]
        data = tmp_path / "photos.npz"
        np.savez(data, images=opened.images, labels=opened.labels, classes=np.array(opened.classes))
    options = {"size": 32} if kind == "folder" else {}
    images = images_for(colours(), data, **options)
    assert clean_accuracy(colours(), images).share == 1.0
    assert measure(colours(), images, ["fog", "contrast"], stride=5).pair("fog", "contrast")[0, 0] == 100.0
    stream = {"name": "clean", "data": str(data), **options}
    experiment = bench.Experiment(stream, "source", model="test_classes:colours", batch=4)
    run = bench.run(experiment, tmp_path / "run")
    assert run.accuracy == 1.0
    assert np.flatnonzero(run.steps["labels"].sum(axis=0)).tolist() == [3, 7, 11]
    assert streams.make("drift", data, classes=12, steps=2, **options)[0].labels.max() > 2


def test_a_run_on_classes_that_cannot_be_matched_is_refused_before_anything_is_written(tmp_path):
    data = make_folder(tmp_path / "photos", {"crow": 3, "newt": 7})
    stream = {"name": "clean", "data": str(data), "size": 32}
    with pytest.raises(DatasetError, match="cannot be matched with the 12"):
        bench.run(bench.Experiment(stream, "source", model="test_classes:colours"), tmp_path / "run")
    with pytest.raises(DatasetError, match="cannot be matched with the 12"):
        measure(colours(), datasets.open(data, size=32), ["fog", "contrast"])
    (tmp_path / "map.json").write_text(json.dumps({"crow": 3, "newt": 7}))
    with_map = bench.Experiment(
        {**stream, "classes": str(tmp_path / "map.json")}, "source", model="test_classes:colours"
    )
    assert bench.run(with_map, tmp_path / "run").accuracy == 1.0


class Astray(streams.Seekable):
    """A stream with a label that no model has."""

    classes = tuple(map(str, range(COLOURS)))

    def __len__(self):
        return 1

    def spans(self, k):
        return (streams.Span(streams.Domain(), 0, 2),)

    def pixels(self, k):
        from tidefast.streams.batch import RawBatch

        return RawBatch(np.zeros((2, 8, 8, 3), np.uint8), np.array([0, COLOURS]), self._step(k), self.spans(k))


def astray(seed, steps, batch):
    return Astray()


def test_a_label_beyond_the_logits_is_an_error_and_no_wrong_answer(tmp_path):
    experiment = bench.Experiment("test_classes:astray", "source", model="test_classes:colours")
    with pytest.raises(DatasetError, match="batch 0 of the stream has the label 12, the model answers with 12 classes"):
        bench.run(experiment, tmp_path / "run")


@pytest.mark.parametrize(("model", "warns"), [("colours", False), ("wrong", True)])
def test_a_source_at_chance_on_clean_images_is_warned_of(model, warns, tmp_path, caplog):
    names = {str(label): label for label in range(COLOURS)}
    stream = {"name": "clean", "data": str(make_folder(tmp_path / "photos", names)), "size": 32}
    with caplog.at_level(logging.WARNING, "tidefast"):
        bench.run(bench.Experiment(stream, "source", model=f"test_classes:{model}", steps=1), tmp_path / "run")
    assert any("which is chance for 12 classes" in record.getMessage() for record in caplog.records) is warns


def test_the_clean_accuracy_is_the_first_thing_that_run_and_calibrate_say(tmp_path, capsys):
    data = make_folder(tmp_path / "photos", {"3": 3, "7": 7})
    common = ["--model", "test_classes:colours", "--data", str(data), "--size", "32"]
    assert cli.main(["run", "--stream", "clean", "--method", "source", *common, "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "test_classes:colours, not adapted: 100.0 % of 8 clean images"
    matrix = ["--types", "fog", "contrast", "--stride", "5", "--out", str(tmp_path / "m.npz")]
    assert cli.main(["calibrate", *common, *matrix]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "test_classes:colours: 100.0 % of 8 clean images"


def test_shards_have_the_labels_of_imagenet_where_the_folders_have_its_ids(tmp_path, capsys):
    data = make_folder(tmp_path / "photos", {"n01443537": 1, "n02123045": 5})
    out = ["--speed", "2", "--total", "8", "--images-per-shard", "8", "--out", str(tmp_path / "shards")]
    assert cli.main(["generate", "--data", str(data), "--size", "32", *out]) == 0
    assert "8 images of 2 classes, labels 1 to 281" in capsys.readouterr().out
    (shard,) = (tmp_path / "shards").glob("*/*.tar")
    with tarfile.open(shard) as archive:
        labels = {archive.extractfile(name).read() for name in archive.getnames() if name.endswith(".cls")}
    assert labels <= {b"1", b"281"}
    stored = streams.make("ccc-shards", path=str(shard.parent))
    datasets.require_match(stored.classes, 1000)


def test_shards_open_by_the_level_that_they_were_generated_for(tmp_path):
    out = ["--total", "200", "--images-per-shard", "200", "--out", str(tmp_path)]
    assert cli.main(["generate", "--level", "easy", *out]) == 0
    for seed in ({}, {"seed": 43}):
        assert len(streams.make("ccc-shards", path=tmp_path, level="easy", batch=50, **seed)) >= 4
    with pytest.raises(DatasetError, match="of the level 'easy' with seed 44, but baseline_60"):
        streams.make("ccc-shards", path=tmp_path, level="easy", seed=44)
    assert cli.main(["generate", "--level", "easy", "--seed", "44", *out]) == 0
    with pytest.raises(DatasetError, match="several streams of the level 'easy'"):
        streams.make("ccc-shards", path=tmp_path, level="easy")


def test_crop_is_whether_and_size_is_how_large(tmp_path):
    data = make_folder(tmp_path / "photos", {"3": 3, "7": 7})
    with pytest.raises(ValueError, match="crop is True or False, got 32: the side of the images is size=32"):
        streams.make("ccc", data, crop=32)
    for name in ("ccc", "drift", "recurring", "cin-c"):
        assert streams.make(name, data, size=32, steps=1, batch=2)[0].images.shape == (2, 3, 32, 32)
    assert streams.make("drift", data, size=24, resize=30, steps=1, batch=2).data.resize == 30
    with pytest.raises(ValueError, match="for image files"):
        streams.make("drift", size=32)
    with pytest.raises(DatasetError, match="are 32x32 and stay so"):
        datasets.open("bundled", size=64)


def test_source_images_have_the_labels_of_the_model(tmp_path):
    for name in ("3", "7"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / name / "image.png")
    ((_, labels),) = source_for(models.load("bundled-resnet"), str(tmp_path))
    assert sorted(labels.tolist()) == [3, 7]
