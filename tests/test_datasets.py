"""Data on disk: every layout is read whole, and whatever is wrong with it is named."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

import tidefast.datasets
from tidefast.datasets import DatasetError, ImageSet, bundled, cifar10, folder
from tidefast.datasets.packing import pack, unpack

CARD = Path(__file__).parents[1] / "docs" / "bundled.md"
PER_FILE = 4
BATCHES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]

Batches = dict[str, tuple[np.ndarray[Any, Any], list[int]]]


@pytest.fixture
def batches() -> Batches:
    """For each file four images [4, 32, 32, 3] and their labels."""
    rng = np.random.default_rng(7)
    return {
        name: (rng.integers(0, 256, (PER_FILE, 32, 32, 3), np.uint8), rng.integers(0, 10, PER_FILE).tolist())
        for name in BATCHES
    }


def planes(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[N, 3072]: all red values, then green, then blue, as the official files have it."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_binary(root: Path, batches: Batches) -> None:
    for name, (images, labels) in batches.items():
        records = [bytes([label]) + row.tobytes() for label, row in zip(labels, planes(images), strict=True)]
        (root / f"{name}.bin").write_bytes(b"".join(records))


def write_python(root: Path, batches: Batches, protocol: int = 2) -> None:
    for name, (images, labels) in batches.items():
        content = {"data": planes(images), "labels": labels, "batch_label": name}
        (root / name).write_bytes(pickle.dumps(content, protocol=protocol))


def write_python2(root: Path, batches: Batches) -> None:
    """Byte for byte what Python 2 wrote into the official files: text and arrays as byte strings."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    for name, (images, labels) in batches.items():
        rows = planes(images)
        array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        array += b"(K\x01J" + struct.pack("<i", rows.shape[0]) + b"J" + struct.pack("<i", rows.shape[1]) + b"\x86"
        array += b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
        array += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + text(rows.tobytes()) + b"tb"
        numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
        content = b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."
        (root / name).write_bytes(content)


def write_npm(root: Path, batches: Batches) -> None:
    for name, (images, _) in batches.items():
        Image.fromarray(images.reshape(len(images), 1024, 3)).save(root / f"{name}.png")
    train = [label for name in BATCHES[:5] for label in batches[name][1]]
    (root / "train_lables.json").write_text(json.dumps(train))
    (root / "test_lables.json").write_text(json.dumps(batches["test_batch"][1]))


WRITERS: dict[str, Callable[[Path, Batches], None]] = {
    "binary": write_binary,
    "python": write_python,
    "python 2": write_python2,
    "npm": write_npm,
}
SUFFIX = {"binary": ".bin", "python": "", "python 2": "", "npm": ".png"}


@pytest.mark.parametrize("layout", WRITERS)
def test_every_layout_gives_the_same_images_in_the_same_order(layout: str, tmp_path: Path, batches: Batches) -> None:
    WRITERS[layout](tmp_path, batches)
    for split, names in (("train", BATCHES[:5]), ("test", BATCHES[5:])):
        images, labels = cifar10(tmp_path, split, images_per_file=PER_FILE)
        np.testing.assert_array_equal(images, np.concatenate([batches[name][0] for name in names]))
        np.testing.assert_array_equal(labels, np.concatenate([batches[name][1] for name in names]))
        assert images.dtype == np.uint8
        assert labels.dtype == np.int64


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol_are_read(protocol: int, tmp_path: Path, batches: Batches) -> None:
    write_python(tmp_path, batches, protocol)
    np.testing.assert_array_equal(cifar10(tmp_path, images_per_file=None).images, batches["test_batch"][0])


@pytest.mark.parametrize(
    ("subfolder", "layout"),
    [("cifar-10-batches-bin", "binary"), ("cifar-10-batches-py", "python"), ("package", "npm")],
)
def test_the_folder_around_the_download_will_do(subfolder: str, layout: str, tmp_path: Path, batches: Batches) -> None:
    (tmp_path / subfolder).mkdir()
    WRITERS[layout](tmp_path / subfolder, batches)
    assert len(cifar10(tmp_path, "train", images_per_file=PER_FILE)) == 5 * PER_FILE


@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_named(layout: str, kept: float, tmp_path: Path, batches: Batches) -> None:
    WRITERS[layout](tmp_path, batches)
    path = tmp_path / f"data_batch_3{SUFFIX[layout]}"
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(DatasetError, match=re.escape(str(path))):
        cifar10(tmp_path, "train", images_per_file=PER_FILE)


def test_a_file_cut_between_two_images_is_noticed(tmp_path: Path, batches: Batches) -> None:
    write_binary(tmp_path, batches)
    path = tmp_path / "test_batch.bin"
    path.write_bytes(path.read_bytes()[: 3 * 3073])
    with pytest.raises(DatasetError, match="holds 3 images, expected 4"):
        cifar10(tmp_path, images_per_file=PER_FILE)
    assert len(cifar10(tmp_path, images_per_file=None)) == 3


def test_whole_files_hold_ten_thousand_images_unless_told_otherwise(tmp_path: Path, batches: Batches) -> None:
    write_binary(tmp_path, batches)
    with pytest.raises(DatasetError, match="holds 4 images, expected 10000"):
        cifar10(tmp_path)


@pytest.mark.parametrize("layout", WRITERS)
def test_a_label_outside_the_ten_classes_is_named(layout: str, tmp_path: Path, batches: Batches) -> None:
    batches["test_batch"][1][2] = 10
    WRITERS[layout](tmp_path, batches)
    with pytest.raises(DatasetError, match=r"image 2 of .*test_batch.* has label 10, expected 0\.\.9"):
        cifar10(tmp_path, images_per_file=PER_FILE)


@pytest.mark.parametrize("labels", [[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, "cat"], [1, 2, 3, 1.5], {"a": 1}, [True] * 4])
def test_json_labels_must_be_one_whole_number_for_each_image(labels: object, tmp_path: Path, batches: Batches) -> None:
    write_npm(tmp_path, batches)
    (tmp_path / "test_lables.json").write_text(json.dumps(labels))
    with pytest.raises(DatasetError, match=r"test_lables\.json"):
        cifar10(tmp_path, images_per_file=PER_FILE)


def test_json_that_is_none_and_labels_that_are_missing_are_named(tmp_path: Path, batches: Batches) -> None:
    write_npm(tmp_path, batches)
    (tmp_path / "test_lables.json").write_text("[1, 2")
    with pytest.raises(DatasetError, match=r"test_lables.json is not a JSON list"):
        cifar10(tmp_path, images_per_file=PER_FILE)
    (tmp_path / "test_lables.json").unlink()
    with pytest.raises(DatasetError, match=r"lacks test_lables.json"):
        cifar10(tmp_path, images_per_file=PER_FILE)


def test_a_png_of_another_width_is_refused(tmp_path: Path, batches: Batches) -> None:
    write_npm(tmp_path, batches)
    Image.new("RGB", (512, PER_FILE)).save(tmp_path / "test_batch.png")
    with pytest.raises(DatasetError, match="512 pixels wide, expected 1024"):
        cifar10(tmp_path, images_per_file=PER_FILE)


class _Touch:
    """Pickles to a call of `Path.touch`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": _Touch(victim), "labels": []}))
    with pytest.raises(DatasetError, match="which plain data does not need"):
        cifar10(tmp_path)
    assert not victim.exists()
    pickle.loads((tmp_path / "test_batch").read_bytes())
    assert victim.exists()  # so the file would have done it


@pytest.mark.parametrize(
    "content",
    [[1, 2], {"labels": [1]}, {"data": np.zeros((1, 3072)), "labels": [1]}, {"data": np.zeros((1, 9), np.uint8)}],
)
def test_a_pickle_of_something_else_is_refused(content: object, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content))
    with pytest.raises(DatasetError, match="test_batch"):
        cifar10(tmp_path, images_per_file=None)


def test_missing_data_says_what_was_expected_and_what_was_found(tmp_path: Path, batches: Batches) -> None:
    with pytest.raises(DatasetError, match="the folder does not exist"):
        cifar10(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match=r"expected test_batch\.bin, test_batch, test_batch\.png .* found nothing"):
        cifar10(tmp_path)
    write_binary(tmp_path, batches)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(DatasetError, match=r"lacks data_batch_4\.bin"):
        cifar10(tmp_path, "train", images_per_file=PER_FILE)
    with pytest.raises(ValueError, match="split must be one of 'train', 'test', got 'validation'"):
        cifar10(tmp_path, "validation")


# Folders of classes


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Two classes, three images, of which one is a grey PNG and one lies a folder deeper."""
    for name in ("newt", "crow"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (40, 60), (10, 20, 30)).save(tmp_path / "newt" / "a.png")
    (tmp_path / "newt" / "deeper").mkdir()
    Image.new("L", (64, 48), 200).save(tmp_path / "newt" / "deeper" / "b.PNG")
    Image.new("RGB", (50, 50), (0, 255, 0)).save(tmp_path / "crow" / "c.bmp")
    (tmp_path / "newt" / "notes.txt").write_text("not an image")
    return tmp_path


def test_a_folder_has_sorted_classes_and_reads_what_is_asked_for(animals: Path) -> None:
    data = folder(animals, resize=36, crop=32)
    assert data.classes == ("crow", "newt")
    assert data.labels.tolist() == [0, 1, 1]
    assert [path.name for path in data.paths] == ["c.bmp", "a.png", "b.PNG"]
    part = data[[2, 0]]
    assert part.images.shape == (2, 32, 32, 3)
    assert part.labels.tolist() == [1, 0]
    assert part.origins.tolist() == [2, 0]
    assert part.images[0, 5, 5].tolist() == [200, 200, 200]
    assert part.images[1, 5, 5].tolist() == [0, 255, 0]
    assert len(data[1:]) == 2


def test_the_crop_is_the_centre_of_the_image_scaled_by_its_shorter_side(tmp_path: Path) -> None:
    (tmp_path / "ramp").mkdir()
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8)[None, :, None], (32, 64, 3))
    Image.fromarray(np.ascontiguousarray(ramp)).save(tmp_path / "ramp" / "ramp.png")
    (cropped,) = folder(tmp_path, resize=None, crop=16)[:].images
    np.testing.assert_array_equal(cropped, ramp[8:24, 24:40])
    (scaled,) = folder(tmp_path, resize=16, crop=16)[:].images  # 32x64 becomes 16x32, of which columns 8 to 23 stay
    np.testing.assert_allclose(scaled[8, :, 0], np.arange(16) * 2 + 16.5, atol=1.01)


def test_given_classes_fix_the_labels(animals: Path) -> None:
    assert folder(animals, crop=32, classes=["newt", "crow"]).labels.tolist() == [0, 0, 1]


def test_class_folders_that_do_not_match_are_listed(animals: Path) -> None:
    with pytest.raises(DatasetError, match=r"2 missing \('heron', 'toad'\); 1 not expected \('newt'\)"):
        folder(animals, classes=["crow", "heron", "toad"])
    with pytest.raises(ValueError, match="different names"):
        folder(animals, classes=["crow", "crow"])
    with pytest.raises(ValueError, match="different names"):
        folder(animals, classes="crow")


def test_an_empty_class_folder_keeps_its_label_and_empty_ones_alone_are_refused(
    animals: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (animals / "eel").mkdir()
    data = folder(animals, crop=32)
    assert data.classes == ("crow", "eel", "newt")
    assert set(data.labels.tolist()) == {0, 2}
    empty = tmp_path_factory.mktemp("empty")
    (empty / "eel").mkdir()
    with pytest.raises(DatasetError, match="no image files in the 1 class folders"):
        folder(empty)
    with pytest.raises(DatasetError, match="holds no class folders"):
        folder(tmp_path_factory.mktemp("bare"))
    with pytest.raises(DatasetError, match="is not a folder"):
        folder(animals / "nowhere")


@pytest.fixture
def damaged(animals: Path) -> Path:
    """The animals, a JPEG cut in half, and text that calls itself one."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(animals / "crow" / "half.jpg")
    whole = (animals / "crow" / "half.jpg").read_bytes()
    (animals / "crow" / "half.jpg").write_bytes(whole[: len(whole) // 2])
    (animals / "newt" / "text.jpg").write_text("hello")
    return animals


def test_unreadable_files_are_all_named_in_the_error(damaged: Path) -> None:
    with pytest.raises(DatasetError, match=r"(?s)2 of 5 image files.*half\.jpg.*text\.jpg.*unreadable='skip'"):
        folder(damaged, crop=32)


def test_unreadable_files_can_be_skipped_with_a_warning_that_names_them(damaged: Path) -> None:
    with pytest.warns(UserWarning, match=r"(?s)half\.jpg.*text\.jpg"):
        data = folder(damaged, crop=32, unreadable="skip")
    assert [path.name for path in data.paths] == ["c.bmp", "a.png", "b.PNG"]


def test_skipping_may_not_empty_a_class(damaged: Path) -> None:
    (damaged / "crow" / "c.bmp").unlink()
    with pytest.raises(DatasetError, match="no image would be left in 'crow'"):
        folder(damaged, crop=32, unreadable="skip")


def test_without_verification_a_bad_file_is_an_error_when_it_is_asked_for(damaged: Path) -> None:
    data = folder(damaged, crop=32, verify=False)
    assert len(data) == 5
    assert len(data[[0]]) == 1
    with pytest.raises(DatasetError, match=r"half\.jpg is truncated"):
        data[[0, 1]]
    with pytest.raises(ValueError, match="needs verify=True"):
        folder(damaged, crop=32, verify=False, unreadable="skip")


def test_an_image_smaller_than_the_crop_is_named(animals: Path) -> None:
    with pytest.raises(DatasetError, match=r"a\.png is 40x60 and cannot be cropped to 45x45"):
        folder(animals, resize=None, crop=45)
    with pytest.raises(ValueError, match="resize must be a whole number of at least 64, got 32"):
        folder(animals, resize=32, crop=64)


# The packed subset


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.just(3))),
    st.data(),
)
def test_packing_loses_nothing(images: np.ndarray[Any, Any], data: st.DataObject) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, 255), min_size=len(images), max_size=len(images))), np.int64)
    origins = np.array(data.draw(st.lists(st.integers(0, 10**6), min_size=len(images), max_size=len(images))), np.int64)
    for read, meant in zip(unpack(pack(images, labels, origins)), (images, labels, origins), strict=True):
        np.testing.assert_array_equal(read, meant)
        assert read.dtype == meant.dtype


def test_damaged_packed_images_are_refused() -> None:
    packed = bytearray(pack(np.zeros((2, 8, 8, 3), np.uint8), np.array([1, 2]), np.array([3, 4])))
    with pytest.raises(DatasetError, match="truncated or damaged"):
        unpack(bytes(packed[:-20]))
    packed[len(packed) // 3] ^= 1
    with pytest.raises(DatasetError, match="truncated or damaged"):
        unpack(bytes(packed))


@pytest.fixture(scope="module")
def subset() -> ImageSet:
    return bundled()


def test_the_bundled_subset_is_balanced_and_knows_where_its_images_are_from(subset: ImageSet) -> None:
    assert np.bincount(subset.labels).tolist() == [300] * 10
    assert subset.images.shape == (3000, 32, 32, 3)
    assert (np.diff(subset.origins) > 0).all()
    assert subset.origins.max() < 10_000
    assert len(np.unique(subset.images.reshape(3000, -1), axis=0)) == 3000


def test_the_bundled_subset_starts_with_the_well_known_first_test_images(subset: ImageSet) -> None:
    assert subset.origins[:8].tolist() == list(range(8))
    names = [subset.classes[label] for label in subset.labels[:8]]
    assert names == ["cat", "ship", "ship", "airplane", "frog", "frog", "automobile", "frog"]
    assert subset.images[0, 0, 0].tolist() == [158, 112, 49]


def test_writing_into_the_bundled_images_changes_them_for_nobody_else() -> None:
    images, labels = bundled()
    images[:] = 0
    labels[:] = 0
    again = bundled()
    assert again.images.any()
    assert again.labels.max() == 9


@pytest.mark.parametrize("file", ["bundled_cifar10.xz", "bundled_cifar10_train.xz"])
def test_the_data_card_states_the_hash_of_the_bundled_images(file: str) -> None:
    path = Path(tidefast.datasets.__file__).with_name(file)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in CARD.read_text()


def test_the_bundled_training_images_are_balanced_and_none_of_the_test_images(subset: ImageSet) -> None:
    train = tidefast.datasets.open("bundled-train")
    assert np.bincount(train.labels).tolist() == [200] * 10
    names = [train.classes[label] for label in train.labels[:5]]
    assert names == ["frog", "truck", "truck", "deer", "automobile"]  # as the training split is known to start
    both = np.concatenate([train.images, subset.images]).reshape(5000, -1)
    assert len(np.unique(both, axis=0)) == 5000
    with pytest.raises(ValueError, match="split must be"):
        bundled("valid")


def test_an_image_set_refuses_labels_that_do_not_fit() -> None:
    images = np.zeros((2, 4, 4, 3), np.uint8)
    with pytest.raises(TypeError, match="one for each image"):
        ImageSet(images, np.array([0]), ("a", "b"))
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.1 .* got 0\.\.2"):
        ImageSet(images, np.array([0, 2]), ("a", "b"))
    with pytest.raises(TypeError, match="images must be uint8"):
        ImageSet(images.astype(np.float32), np.array([0, 1]), ("a", "b"))


# Sets by name or path


def test_open_knows_each_kind_of_data_by_its_path(tmp_path: Path, animals: Path, batches: Batches) -> None:
    assert len(tidefast.datasets.open("bundled")) == 3000
    data = tidefast.datasets.open(str(animals), resize=36, crop=32)
    assert data.classes == ("crow", "newt")
    assert data[[0]].images.shape == (1, 32, 32, 3)
    (tmp_path / "cifar" / "cifar-10-batches-bin").mkdir(parents=True)
    repeated = {name: (np.tile(images, (2500, 1, 1, 1)), labels * 2500) for name, (images, labels) in batches.items()}
    write_binary(tmp_path / "cifar" / "cifar-10-batches-bin", {"test_batch": repeated["test_batch"]})
    found = tidefast.datasets.open(tmp_path / "cifar")
    np.testing.assert_array_equal(found[:4].images, batches["test_batch"][0])
    np.savez(tmp_path / "own.npz", images=found[:4].images, labels=np.array([2, 0, 1, 1], np.uint8))
    own = tidefast.datasets.open(tmp_path / "own.npz")
    assert isinstance(own, ImageSet)
    assert (own.labels.tolist(), own.classes) == ([2, 0, 1, 1], ("0", "1", "2"))
    np.savez(tmp_path / "named.npz", images=found[:4].images, labels=[1, 0, 1, 1], classes=["eel", "owl"])
    assert tidefast.datasets.open(tmp_path / "named.npz").classes == ("eel", "owl")


def test_a_stream_takes_a_path_as_its_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", images=np.zeros((8, 16, 16, 3), np.uint8), labels=np.arange(8))
    for data in (tmp_path / "own.npz", str(tmp_path / "own.npz")):
        stream = tidefast.streams.make("cin-c", data, batch=8)
        assert stream[1].images.shape == (8, 3, 16, 16)
    assert len(tidefast.streams.make("clean", "bundled")) == 47


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((2, 8, 8, 3), np.uint8)}, "lacks an array: .*labels.*expected images and labels"),
        ({"images": np.zeros((2, 8, 8, 3)), "labels": [0, 1]}, "images must be uint8"),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": [0.5, 1]}, "float64"),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": [0, 1, 1]}, "one for each image"),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": [-1, 1]}, "labels must lie in"),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": np.array([None, 1])}, "allow_pickle"),
    ],
)
def test_arrays_that_are_no_images_are_refused_with_the_name_of_the_file(
    arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DatasetError, match=rf"own\.npz .*{message}"):
        tidefast.datasets.open(tmp_path / "own.npz")


def test_open_says_what_it_takes(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no images")
    (tmp_path / "broken.npz").write_bytes(b"PK broken")
    with pytest.raises(DatasetError, match=r"no images at '.*nowhere': there is no such file or folder; expected"):
        tidefast.datasets.open(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match=r"notes\.txt': it is a file of another kind; expected \"bundled\","):
        tidefast.datasets.open(tmp_path / "notes.txt")
    with pytest.raises(DatasetError, match=r"broken\.npz holds no images that can be used"):
        tidefast.datasets.open(tmp_path / "broken.npz")
    with pytest.raises(DatasetError, match="holds no class folders"):
        tidefast.datasets.open(tmp_path)
