"""A thousand classes that come with the package: the network, the photos, their parts, and an installation without."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import tidefast
from tidefast import bench, cli, datasets, models, serve, streams
from tidefast.bench import assembly
from tidefast.core import bundle
from tidefast.datasets import ImageFolder, ImageSet, Subset, bundled_1k
from tidefast.datasets.bundled_1k import photo_credits
from tidefast.errors import MissingFilesError, TidefastError

FOLDER = Path(tidefast.__file__).parent / bundle.FOLDER
RIGHT = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 18, 20, 21, 22, 23]
DIGEST = "edbafbd9a759bf54"
CARD = (Path(__file__).parents[1] / "docs" / "bundled.md").read_text()


@pytest.fixture(scope="module")
def photos() -> ImageSet:
    return datasets.photos()


@pytest.fixture
def left_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation whose folder of a thousand classes was deleted."""
    monkeypatch.setattr(bundle, "FOLDER", "deleted")
    bundled_1k._decoded.cache_clear()
    yield
    bundled_1k._decoded.cache_clear()


def test_the_network_knows_the_photos_that_it_knew_when_it_was_measured(photos: ImageSet) -> None:
    network = models.load("bundled-lite0")
    chosen = photos[:24]
    with torch.inference_mode():
        logits = network(datasets.as_tensor(chosen.images))
    assert logits.shape == (24, 1000)
    right = (logits.argmax(1).numpy() == chosen.labels).nonzero()[0].tolist()
    assert right == RIGHT


def test_the_network_takes_255_x_less_127_over_128_and_pads_as_tensorflow_does() -> None:
    network = models.build("bundled-lite0")
    white, black = torch.ones(1, 3, 32, 32), torch.zeros(1, 3, 32, 32)
    assert torch.allclose(network.pixels(white), torch.tensor(1.0))
    assert torch.allclose(network.pixels(black), torch.tensor(-127 / 128))
    kernel = network.stem[1]
    with torch.no_grad():
        kernel.weight.zero_()
        kernel.weight[0, 0, 0, 0] = 1.0  # a corner of the window: nothing was put above or to its left
    ramp = torch.arange(64.0).view(1, 1, 8, 8).expand(1, 3, 8, 8)
    assert torch.equal(kernel(network.stem[0](ramp))[0, 0], ramp[0, 0, ::2, ::2])


def test_the_pixels_are_those_that_were_stored(photos: ImageSet) -> None:
    assert photos.images.shape == (1000, 128, 128, 3)
    assert len(photos.classes) == 1000
    assert len(np.unique(photos.labels)) == 430
    assert hashlib.sha256(photos.images[:100].tobytes()).hexdigest()[:16] == DIGEST
    photos.images[:] = 0
    assert datasets.photos().images.any()


def test_every_photo_names_its_author_its_page_and_its_licence() -> None:
    rows = photo_credits()
    assert [row["file"] for row in rows] == zipfile.ZipFile(FOLDER / "photos.zip").namelist()
    assert all(row["author"].strip() and re.match(r"https?://\S+$", row["page"]) for row in rows)
    assert {row["licence"] for row in rows} == {"https://creativecommons.org/licenses/by/2.0/"}
    notice = (FOLDER / "NOTICE.txt").read_text()
    assert all(word in notice for word in ("Creative\n    Commons Attribution 2.0", "Changed:", "photos.csv", "Apache"))


@pytest.mark.parametrize("file", ["lite0.safetensors", "photos.zip", "photos.csv", "ccc.npz"])
def test_the_card_states_size_and_hash_of_each_file(file: str) -> None:
    content = (FOLDER / file).read_bytes()
    assert f"| `{file}` | {len(content):,} | `{hashlib.sha256(content).hexdigest()}` |" in CARD


def test_the_folder_is_small_enough_for_a_wheel_of_thirty_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 18_000_000


# Parts


@pytest.mark.parametrize("name", ["bundled", "bundled-train", "bundled-1k"])
def test_the_parts_of_a_set_are_disjoint_whole_and_stratified(name: str) -> None:
    whole = datasets.open(name)
    stream, held = (datasets.open(f"{name}:part={part}") for part in ("stream", "held"))
    assert isinstance(stream, ImageSet)
    assert isinstance(held, ImageSet)
    places = {part: np.searchsorted(whole.origins, one.origins) for part, one in (("s", stream), ("h", held))}
    assert sorted([*places["s"], *places["h"]]) == list(range(len(whole)))
    assert np.array_equal(held.images, whole.images[places["h"]])
    share = np.bincount(whole.labels) / 5
    assert np.abs(np.bincount(held.labels, minlength=len(share)) - share).max() < 1
    assert len(datasets.open(name, part="held")) == len(whole) // 5


def test_a_part_of_files_reads_none_until_it_is_asked(tmp_path: Path) -> None:
    names = [f"{label}/{k}.png" for label in "ab" for k in range(5)]
    files = ImageFolder(tmp_path, names, np.repeat([0, 1], 5), ("a", "b"))
    held = datasets.part_of(files, "held")
    assert isinstance(held, Subset)
    assert held.places.tolist() == [2, 7]
    with pytest.raises(ValueError, match="part must be one of 'all', 'stream', 'held'"):
        datasets.part_of(files, "test")
    with pytest.raises(datasets.DatasetError, match="no option prt; their options: part, size, resize, crop"):
        datasets.open("bundled:prt=held")


def test_streams_and_experiments_name_parts() -> None:
    held = datasets.open("bundled:part=held").origins
    stream = streams.make("ccc-mini:part=stream,seed=43", steps=3, batch=8)
    assert len(stream.data) == 2400
    assert not set(stream.data.origins) & set(held)
    experiment = bench.Experiment(
        "clean:part=stream", "eata:source_samples=16", source="bundled:part=held", source_images=16, steps=2, batch=4
    )
    assembly.check(experiment)
    assert len(assembly.stream_of(experiment).data) == 2400
    assert bench.Experiment.of(experiment.as_plain()) == experiment
    with pytest.raises(ValueError, match="part='held' is of images that stream 'cin-c' is given as data="):
        streams.make("cin-c", part="held")


# Streams


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_ccc_1k_is_at_hand_at_every_level(level: str) -> None:
    stream = streams.make("ccc-1k", level=level, seed=43, steps=2000, batch=2, part="stream")
    batch = stream[1000]
    assert batch.images.shape == (2, 3, 128, 128)
    assert len(stream.data) == 800
    assert all(severity <= 5 for span in batch.spans for _, severity in span.domain.corruptions)


def test_clean_1k_shows_each_photo_once(photos: ImageSet) -> None:
    stream = streams.make("clean-1k")
    labels = torch.cat([stream[k].labels for k in range(len(stream))])
    assert sorted(labels.tolist()) == sorted(photos.labels.tolist())


def test_the_service_takes_images_of_the_size_of_the_photos_and_gives_them_no_names_of_cifar(tmp_path: Path) -> None:
    settings = serve.Settings(
        model="bundled-lite0", method="source", reset="never", state=tmp_path / "state", threads=1
    )
    service = serve.open_service(settings)
    try:
        assert (service.size, service.labels) == ((128, 128), None)
    finally:
        service.snapshots.close()


# Without the folder


def test_an_installation_without_the_folder_says_what_is_missing(
    left_out: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for missing in (
        lambda: models.load("bundled-lite0"),
        lambda: datasets.open("bundled-1k"),
        lambda: streams.make("clean-1k"),
        lambda: streams.make("ccc-1k"),
    ):
        with pytest.raises(MissingFilesError, match="has no folder tidefast/deleted, which holds bundled-lite0"):
            missing()
    assert issubclass(MissingFilesError, TidefastError)
    assert cli.main(["calibrate", "--show", "bundled-1k"]) == 2
    assert "has no folder tidefast/deleted" in capsys.readouterr().err


def test_an_installation_without_the_folder_does_everything_else(
    left_out: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["list", "datasets"]) == 0
    assert capsys.readouterr().out.split() == ["bundled", "bundled-train", "bundled-1k"]
    assert models.load("bundled-resnet")(streams.make("ccc-mini", steps=1, batch=4)[0].images).shape == (4, 10)
