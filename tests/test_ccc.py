"""CCC: its accuracy matrix, its streams by name, the images they are made of."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tidefast.corruptions import CCC, corrupt
from tidefast.datasets import DatasetError, ImageSet, bundled, folder
from tidefast.streams import CCCImages, CCCMiniRecipe, CCCRecipe, Domain, Matrix, find_path, make, noise_chain
from tidefast.streams.ccc_images import random_box
from tidefast.streams.generation import plan_shards
from tidefast.streams.matrix import ASSUMED, INTERPOLATED, MEASURED, UNKNOWN, interpolate, matrix_of

BUNDLED = bundled()


def published(path: Path, types: tuple[str, ...] = CCC, protocol: int = 4) -> dict[str, np.ndarray]:
    """A pickle as CCC's is described, with a matrix of its own for each pair."""
    random = np.random.default_rng(0)
    content = {
        f"n1_{first}_n2_{second}": random.uniform(0, 76, (21, 21))
        for first in types
        for second in types
        if first != second
    }
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return content


# --- The matrix


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_the_published_pickle_becomes_a_matrix_with_its_pairs_in_place(tmp_path: Path, protocol: int):
    content = published(tmp_path / "ccc_accuracy_matrix.pickle", protocol=protocol)
    matrix = Matrix.of_pickle(tmp_path / "ccc_accuracy_matrix.pickle")
    assert matrix.types == CCC
    for first, second in itertools.permutations(CCC, 2):
        assert np.array_equal(matrix.pair(first, second), content[f"n1_{first}_n2_{second}"])
    assert np.isnan(matrix.accuracies[3, 3]).all()
    assert (matrix.cells[0, 1] == MEASURED).all()
    assert (matrix.cells[3, 3] == UNKNOWN).all()


def test_a_matrix_is_stored_without_loss_and_always_in_the_same_bytes(tmp_path: Path):
    published(tmp_path / "m.pickle", ("fog", "elastic", "jpeg"))
    matrix = matrix_of(tmp_path / "m.pickle")
    matrix.write(tmp_path / "a.npz")
    again = matrix_of(tmp_path / "a.npz")
    assert np.array_equal(again.accuracies, matrix.accuracies, equal_nan=True)
    assert np.array_equal(again.cells, matrix.cells)
    assert (again.types, again.model, again.settings) == (matrix.types, "published", {"source": "m.pickle"})
    again.write(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert again.path("elastic_transform", "jpeg", 40) == find_path(matrix.pair("elastic", "jpeg_compression"), 40)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch ran",)


@pytest.mark.parametrize("content", [Bomb(), {"n1_fog_n2_snow": Bomb()}])
def test_a_pickle_with_code_in_it_is_refused_and_not_run(tmp_path: Path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    Path("m.pickle").write_bytes(pickle.dumps(content))
    with pytest.raises(DatasetError, match="not a pickle of plain data"):
        Matrix.of_pickle("m.pickle")
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ([1, 2], "holds list, expected a dictionary"),
        ({}, "expected a dictionary"),
        ({"fog_snow": np.ones((21, 21))}, "key 'fog_snow', expected keys such as 'n1_fog_n2_snow'"),
        ({"n1_fog_n2_smoke": np.ones((21, 21))}, "unknown corruption 'smoke'"),
        ({"n1_fog_n2_snow": np.ones((20, 21))}, r"expected finite accuracies \[21, 21\], got shape \[20, 21\]"),
        ({"n1_fog_n2_snow": np.full((21, 21), np.nan)}, "expected finite"),
        ({"n1_fog_n2_snow": np.full((21, 21), 0.4)}, "expected percent, not shares"),
        ({"n1_fog_n2_snow": np.full((21, 21), 140.0)}, r"must lie in 0..100 percent"),
        ({"n1_fog_n2_snow": "high"}, "n1_fog_n2_snow"),
    ],
)
def test_a_pickle_of_something_else_is_refused_in_plain_words(tmp_path: Path, content, match: str):
    (tmp_path / "m.pickle").write_bytes(pickle.dumps(content))
    with pytest.raises(DatasetError, match=match):
        Matrix.of_pickle(tmp_path / "m.pickle")


def test_a_file_that_is_no_matrix_is_named(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"no accuracy matrix .*m\.npz: measure one with tidefast calibrate"):
        Matrix.read(tmp_path / "m.npz")
    whole = tmp_path / "whole.npz"
    Matrix.synthetic(("fog", "snow")).write(whole)
    other = io.BytesIO()
    np.savez(other, about=np.array(json.dumps({"format": "else"})), accuracies=np.zeros(1), cells=np.zeros(1))
    with_pickle = io.BytesIO()
    np.savez(with_pickle, about=np.array({"a": 1}, dtype=object))
    for content in (b"", b"text", whole.read_bytes()[:400], other.getvalue(), with_pickle.getvalue()):
        (tmp_path / "m.npz").write_bytes(content)
        with pytest.raises(DatasetError, match=r"m\.npz is"):
            Matrix.read(tmp_path / "m.npz")


def test_a_pair_that_the_matrix_does_not_know_is_named(tmp_path: Path):
    matrix = Matrix.synthetic(("fog", "snow"))
    with pytest.raises(ValueError, match="does not know 'frost'; its types: fog, snow"):
        matrix.pair("fog", "frost")
    with pytest.raises(ValueError, match="no complete entry for 'fog' then 'fog'"):
        matrix.pair("fog", "fog")
    with pytest.raises(ValueError, match="at least two different types"):
        Matrix(("fog",), np.zeros((1, 1, 21, 21)), np.zeros((1, 1, 21, 21), np.uint8))
    with pytest.raises(ValueError, match=r"must be \[2, 2, 21, 21\], got \[2, 2, 6, 6\]"):
        Matrix(("fog", "snow"), np.zeros((2, 2, 6, 6)), np.zeros((2, 2, 21, 21), np.uint8))


@pytest.mark.parametrize("stride", [2, 4])
def test_a_bilinear_surface_is_interpolated_exactly_and_knots_are_kept(stride: int):
    i, j = np.mgrid[0:21, 0:21]
    plane = 90 - 2.0 * i - 1.5 * j + 0.04 * i * j
    rough = np.where((i % stride == 0) & (j % stride == 0), plane, 0.0)
    matrix = Matrix(("fog", "snow"), np.tile(rough, (2, 2, 1, 1)), np.full((2, 2, 21, 21), MEASURED, np.uint8))
    fine = interpolate(matrix, range(0, 21, stride))
    assert np.allclose(fine.pair("fog", "snow"), plane)
    assert np.array_equal(fine.cells[0, 1] == MEASURED, (i % stride == 0) & (j % stride == 0))
    assert set(np.unique(fine.cells)) == {MEASURED, INTERPOLATED}


def test_the_bundled_matrix_says_where_it_comes_from():
    matrix = Matrix.bundled()
    assert matrix.types == CCC
    assert (matrix.model, matrix.count) == ("bundled-resnet", 300)
    assert matrix.settings["stride"] == 4
    off_diagonal = ~np.eye(14, dtype=bool)
    assert np.isfinite(matrix.accuracies[off_diagonal]).all()
    knots = np.ix_(range(0, 21, 4), range(0, 21, 4))
    assert all((matrix.cells[a, b][knots] == MEASURED).all() for a, b in np.argwhere(off_diagonal))
    assert not (matrix.cells == ASSUMED).any()
    # One corruption alone does not depend on which pair it is part of.
    for name in CCC:
        others = [other for other in CCC if other != name]
        assert len({matrix.pair(name, other)[:, 0].tobytes() for other in others}) == 1
        assert len({matrix.pair(other, name)[0].tobytes() for other in others}) == 1
        assert np.array_equal(matrix.pair(name, others[0])[:, 0], matrix.pair(others[0], name)[0])


# --- Streams by name


def cells(recipe: CCCRecipe, seed: int, count: int) -> list:
    return list(itertools.islice(recipe.stretches(seed), count))


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
@pytest.mark.parametrize("seed", [43, 44, 45])
def test_a_stream_walks_the_paths_of_the_matrix_along_the_published_chain(level: str, seed: int):
    matrix = Matrix.synthetic()
    target = {"easy": 40, "medium": 20, "hard": 0}[level]
    found = iter(cells(CCCRecipe(level=level, speed=7, matrix=matrix), seed, 300))
    with_short = {"jpeg": "jpeg_compression", "elastic": "elastic_transform"}
    for first, second in itertools.pairwise(noise_chain(level, seed, 5)):
        for i, j in find_path(matrix.pair(first, second), target):
            stretch = next(found)
            assert stretch.images == 7
            assert stretch.domain.corruptions == (
                (with_short.get(first, first), i / 4),
                (with_short.get(second, second), j / 4),
            )


def test_the_hard_level_needs_no_matrix_and_the_others_say_so():
    hard = cells(CCCRecipe(), 43, 82)
    assert [str(stretch.domain) for stretch in (hard[0], hard[20], hard[40], hard[41])] == [
        "gaussian_noise 5",
        "gaussian_noise 5 + impulse_noise 5",
        "impulse_noise 5",
        "impulse_noise 5",
    ]
    with pytest.raises(ValueError, match="mean accuracy of 40 % needs a matrix"):
        cells(CCCRecipe(level="easy"), 43, 1)
    with pytest.raises(ValueError, match="stream 'ccc' needs data: the 50 000 validation images"):
        make("ccc")


@pytest.mark.parametrize(
    ("speed", "steps_per_shard", "images_per_shard", "shards", "total"),
    [(1000, 25, 25_000, 300, 7_500_000), (2000, 13, 26_000, 289, 7_514_000), (5000, 5, 25_000, 300, 7_500_000)],
)
def test_the_sizes_of_the_published_streams(speed: int, steps_per_shard: int, images_per_shard: int, shards, total):
    recipe = CCCRecipe(speed=speed)
    plans = plan_shards(recipe.stretches(43), recipe.total)
    assert {plan.stop - plan.first for plan in plans} == {steps_per_shard}
    assert {plan.images for plan in plans} == {images_per_shard}
    assert (len(plans), sum(plan.images for plan in plans)) == (shards, total)
    assert [plan.first for plan in plans[1:]] == [plan.stop for plan in plans[:-1]]
    schedule = recipe.schedule(seed=43, size=50_000, batch=64, steps=None)
    assert schedule.images == 7_500_000
    assert len(schedule.stretches) == 7_500_000 // speed


def test_random_speeds_change_durations_and_nothing_else():
    plain = cells(CCCRecipe(speed=1000), 43, 41 * 60)
    by_pair = cells(CCCRecipe(speed="random"), 43, 41 * 60)
    by_cell = cells(CCCRecipe(speed="random", redraw="cell"), 43, 41 * 60)
    for drawn in (by_pair, by_cell):
        assert [stretch.domain for stretch in drawn] == [stretch.domain for stretch in plain]
        assert {stretch.images for stretch in drawn} == {1000, 2000, 5000}
    walks = [{stretch.images for stretch in by_pair[start : start + 41]} for start in range(0, len(by_pair), 41)]
    assert all(len(speeds) == 1 for speeds in walks)
    assert min(Counter(speeds.pop() for speeds in walks).values()) >= 10  # of 60; 20 expected
    assert len({stretch.images for stretch in by_cell[:41]}) == 3
    assert by_pair == cells(CCCRecipe(speed=(1000, 2000, 5000)), 43, 41 * 60)
    assert [s.images for s in by_pair] != [s.images for s in cells(CCCRecipe(speed="random"), 44, 41 * 60)]


def test_any_corruptions_make_a_chain_and_a_repeated_one_comes_more_often():
    recipe = CCCRecipe(level=("brightness", "fog", "fog", "spatter"), target=30.0, matrix="synthetic", speed=1)
    names = Counter(stretch.domain.corruptions[0][0] for stretch in cells(recipe, 0, 3000))
    assert set(names) == {"brightness", "fog", "spatter"}
    assert names["fog"] > max(names["brightness"], names["spatter"])


def test_a_number_for_a_level_is_its_target_and_picks_the_types():
    assert CCCRecipe(level=0.0).types == CCCRecipe(level="hard").types
    assert CCCRecipe(level=25, matrix="synthetic").types == CCCRecipe(level="medium", matrix="synthetic").types
    assert (CCCRecipe(level=40, matrix="synthetic").types, CCCRecipe(level=25, matrix="synthetic").aim) == (CCC, 25)
    assert CCCRecipe(level=("fog", "snow")).aim == 0
    assert CCCRecipe(level="hard", target=10.0, matrix="synthetic").aim == 10
    easy, medium = (CCCMiniRecipe.targets[level] for level in ("easy", "medium"))
    assert len(CCCMiniRecipe(level=easy).types) == 14
    assert len(CCCMiniRecipe(level=medium).types) == 13


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"level": "harder"}, "unknown level 'harder'; known: easy, medium, hard"),
        ({"level": 140}, r"level must lie in \[0.0, 100.0\]"),
        ({"level": ("fog",)}, "at least two different corruptions"),
        ({"speed": "fast"}, "speed must be one of 'random'"),
        ({"speed": 0}, "speed must be a whole number of at least 1"),
        ({"speed": ()}, "got none"),
        ({"redraw": "step"}, "redraw must be one of 'pair', 'cell'"),
        ({"target": -1.0}, "target must lie in"),
        ({"jpeg": 101}, "jpeg must lie in"),
        ({"total": 0}, "total must be"),
        ({"matrix": "nowhere.npz"}, r"no accuracy matrix nowhere\.npz"),
    ],
)
def test_bad_options_are_refused_in_plain_words(options: dict, match: str):
    with pytest.raises(ValueError, match=match):
        make("ccc-mini", **options)


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_the_small_benchmark_runs_out_of_the_box(level: str):
    stream = make("ccc-mini", seed=43, steps=3000, batch=32, level=level)
    assert len(stream) == 3000
    assert stream[2999].images.shape == (32, 3, 32, 32)
    pairs = [tuple(name for name, _ in stretch.domain.corruptions) for stretch in stream.schedule.stretches]
    transitions = len(list(itertools.groupby(pairs)))
    assert transitions >= 12
    assert len(make("ccc-mini")) == 1500  # 96 000 images in batches of 64


# --- Images


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """A folder of JPEG files of many sizes, with something to see in them."""
    root = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    sizes = [(500, 375), (40, 30), (375, 500), (224, 224), (90, 60), (640, 120), (1000, 40), (33, 250), (300, 300)]
    for number, (width, height) in enumerate(sizes):
        place = root / ("crow" if number % 2 else "newt")
        place.mkdir(exist_ok=True)
        coarse = random.integers(0, 256, (6, 6, 3), np.uint8)
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(place / f"{number}.JPEG")
    return root


def test_images_of_a_folder_are_cropped_corrupted_and_stored_in_this_order(pictures: Path):
    data = folder(pictures, resize=64, crop=64, verify=False)
    stream = make("ccc", data, seed=43, steps=6, batch=4, speed=8)
    raw = CCCImages(crop=True, jpeg=None)
    places = stream.passes.images(0, 0, 0, 4)
    arguments = {"seed": 43, "indices": np.arange(4), "scale": stream.scale}
    pieces = raw.render(data, places, Domain(), **arguments)
    assert pieces.shape == (4, 64, 64, 3)
    noisy = corrupt(pieces, "gaussian_noise", 5.0, seed=43, scale=stream.scale, indices=range(4))
    expected = []
    for image in noisy:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=85, optimize=True)
        expected.append(np.array(Image.open(file)))
    pixels = stream.pixels(0)
    assert np.array_equal(pixels.images, np.stack(expected))
    assert np.array_equal(pixels.labels, data.labels[places])


def test_an_image_depends_on_its_position_and_not_on_its_batch(pictures: Path):
    data = folder(pictures, resize=32, crop=32, verify=False)
    whole = make("ccc", data, seed=1, steps=2, batch=20, speed=7)
    small = make("ccc", data, seed=1, steps=10, batch=4, speed=7)
    images = np.concatenate([small.pixels(k).images for k in range(10)])
    assert np.array_equal(np.concatenate([whole.pixels(k).images for k in range(2)]), images)
    other = np.concatenate([make("ccc", data, seed=2, steps=2, batch=20, speed=7).pixels(k).images for k in range(2)])
    assert not np.array_equal(images, other)


def test_pieces_are_flipped_half_of_the_time_before_the_crop():
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8)[None, :, None], (64, 1, 3))  # brighter to the right
    data = ImageSet(np.tile(ramp, (400, 1, 1, 1)), np.zeros(400, np.int64), ("ramp",))
    images = CCCImages(crop=True, jpeg=None).render(
        data, np.arange(400), Domain(), seed=0, indices=np.arange(400), scale="cifar"
    )
    rising = (images[:, :, -1, 0].astype(int) > images[:, :, 0, 0]).mean(axis=1) > 0.5
    assert 160 < rising.sum() < 240


def test_boxes_have_the_areas_and_ratios_of_a_random_resized_crop():
    random = np.random.default_rng(0)
    boxes = np.array([random_box(500, 400, random) for _ in range(4000)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0
    assert boxes[:, 2].max() <= 500
    assert boxes[:, 3].max() <= 400
    ratio = np.log(width / height)
    assert abs(ratio).max() < np.log(4 / 3) + 0.02
    share = width * height / (500 * 400)
    assert 0.079 < share.min() < 0.09
    # Large and oblong ones do not fit and are drawn again, so the mean is below (0.08 + 1) / 2.
    assert 0.43 < share.mean() < 0.48
    assert {random_box(10, 4000, np.random.default_rng(seed)) for seed in range(20)} == {(0, 1993, 10, 2006)}


def test_boxes_agree_with_torchvision_in_distribution(torchvision):
    import torch
    from torchvision.transforms import RandomResizedCrop

    torch.manual_seed(0)
    blank = Image.new("RGB", (300, 200))
    theirs = np.array([RandomResizedCrop.get_params(blank, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(4000)])
    random = np.random.default_rng(1)
    boxes = np.array([random_box(300, 200, random) for _ in range(4000)])
    ours = np.stack([boxes[:, 1], boxes[:, 0], boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]], axis=1)
    for quantile in (0.1, 0.5, 0.9):
        assert np.allclose(np.quantile(ours, quantile, axis=0), np.quantile(theirs, quantile, axis=0), atol=8)


def test_a_damaged_picture_is_named(tmp_path: Path):
    (tmp_path / "newt").mkdir()
    (tmp_path / "newt" / "1.jpg").write_bytes(b"no picture")
    data = folder(tmp_path, resize=None, crop=32, verify=False)
    with pytest.raises(DatasetError, match=r"1\.jpg is truncated, damaged or no image"):
        make("ccc", data, steps=1, batch=1, scale="imagenet")[0]


def test_a_longer_stream_begins_like_a_shorter_one():
    short, long = (make("ccc-mini", seed=45, steps=steps, batch=16, speed="random") for steps in (20, 2000))
    assert np.array_equal(short.pixels(19).images, long.pixels(19).images)


def test_the_bundled_streams_keep_to_the_data():
    stream = make("ccc-mini", seed=43, steps=4, batch=80)
    first = stream.pixels(0).images.reshape(80, -1).tobytes()
    again = make("ccc-mini", BUNDLED, seed=43, steps=4, batch=80).pixels(0).images.reshape(80, -1).tobytes()
    assert first == again
