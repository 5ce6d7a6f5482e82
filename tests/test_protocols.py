"""The published benchmarks as streams: their order, length and data, and what is said when data is missing."""

from __future__ import annotations

import itertools
import pickle
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import tidefast
from tidefast import cli, corruptions, datasets, models, resets
from tidefast.core.record import History
from tidefast.datasets import D109_INDICES, DatasetError, ImageFolder, ImageSet, bundled, draw_subset
from tidefast.datasets.d109 import CLASSES, DOMAINS
from tidefast.datasets.subset import digest, read_ids
from tidefast.models.selection import select_classes
from tidefast.streams import (
    Dirichlet,
    Domain,
    RecurringStream,
    Runs,
    Seekable,
    Segments,
    Span,
    Stream,
    hold,
    make,
    registry,
)
from tidefast.streams.protocols.cin_c import ORDERS

BUNDLED = bundled()
FULL = (
    "cdc",
    "cifar10-c",
    "cifar100-c",
    "cin-c",
    "cin-c-noniid",
    "in-c-recurring",
    "in-d109-recurring",
    "petta-recurring",
)
MINI = tuple(f"{name}-mini" for name in FULL)


def domains(stream: Seekable, stop: int | None = None) -> list[str]:
    """The domains in their order, each once for every time that it begins."""
    named = [str(stream.spans(k)[0].domain) for k in range(len(stream) if stop is None else stop)]
    return [name for name, _ in itertools.groupby(named)]


def imagenet_names() -> ImageFolder:
    """As many names and labels as ImageNet's validation set has; nothing can be read from it."""
    names = [f"n{label:08d}/val_{label * 50 + i:08d}.JPEG" for label in range(1000) for i in range(50)]
    labels = np.repeat(np.arange(1000, dtype=np.int64), 50)
    return ImageFolder(Path("nowhere"), names, labels, tuple(sorted({name[:9] for name in names})))


# --- What all of them have in common


def test_every_protocol_is_listed_with_a_small_form_that_needs_nothing():
    assert {*FULL, *MINI} <= set(registry.names())
    assert all(registry.get(name).needs for name in FULL)
    assert not any(registry.get(name).needs for name in MINI)


@pytest.mark.parametrize("name", MINI)
def test_every_small_form_delivers_the_same_bits_at_any_step_and_says_where_they_are_from(name: str):
    stream, again = (make(name, BUNDLED, seed=3, steps=40, batch=64) for _ in range(2))
    assert len(stream) == 40
    for k in (39, 0, 8):
        batch = stream[k]
        assert batch.images.shape[1:] == (3, 32, 32)
        assert batch.index == k
        assert torch.equal(batch.images, again[k].images)
        assert torch.equal(batch.labels, again[k].labels)
        assert batch.spans == stream.spans(k)
        assert sum(span.images for span in batch.spans) == len(batch)
    longer = make(name, BUNDLED, seed=3, steps=400, batch=64)
    assert torch.equal(longer[39].images, stream[39].images)
    assert longer.classes == BUNDLED.classes


@pytest.mark.parametrize("name", FULL)
def test_a_full_form_without_data_says_what_it_needs(name: str):
    with pytest.raises(DatasetError, match=f"stream '{name}' was given no images; it needs root: .*root/<"):
        make(name)


@pytest.mark.parametrize("name", FULL)
def test_a_root_that_does_not_exist_is_named(name: str, tmp_path: Path):
    with pytest.raises(DatasetError, match=re.escape(str(tmp_path / "nowhere"))):
        make(name, root=tmp_path / "nowhere")


def test_list_says_what_a_stream_is_and_what_it_needs(capsys):
    assert cli.main(["list", "streams", "cin-c*", "--long"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "cin-c"
    assert out.splitlines()[1].startswith("    CIN-C: 15 corruptions at severity 5")
    assert out.splitlines()[2].startswith("    needs root: ImageNet-C")
    assert out.splitlines()[3] == "      corruptions   tuple of str, default ()"
    about = [line for line in out.splitlines() if not line.startswith("      ")]
    assert about[3:5] == ["cin-c-mini", "    CIN-C on the bundled images, corrupted on the way."]
    assert cli.main(["list", "--long"]) == 0
    described = capsys.readouterr().out.splitlines()
    for name in ("methods\troid", "resets\tasr", "models\tbundled-vit"):
        assert re.match(r"    \w+", described[described.index(name) + 1])


def test_the_page_on_benchmarks_names_them_all_and_its_code_runs():
    page = (Path(__file__).parents[1] / "docs" / "benchmarks.md").read_text()
    assert all(f"`{name}`" in page for name in FULL)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(block, names)
    assert names["adapter"].last.skipped is None


@pytest.mark.slow
def test_worker_processes_give_a_tour_the_same_bits():
    stream = make("cdc-mini", visits=1, images=128, seed=1)
    for made, here in zip(stream.batches(start=2, workers=1), stream.batches(start=2), strict=True):
        assert torch.equal(made.images, here.images)
        assert (made.index, made.spans) == (here.index, here.spans)


# --- CIN-C


def test_the_ten_orders_hold_all_fifteen_corruptions_and_differ():
    assert len(set(ORDERS)) == 10
    assert all(sorted(order) == sorted(corruptions.IMAGENET_C) for order in ORDERS)
    assert ORDERS[0][:4] == ("brightness", "pixelate", "gaussian_noise", "motion_blur")
    assert ORDERS[9][-3:] == ("snow", "motion_blur", "brightness")


def test_cin_c_has_the_published_length_and_no_batch_crosses_domains():
    stream = make("cin-c", imagenet_names(), order_number=7, scale="imagenet")
    assert len(stream) == 11_730
    assert domains(stream) == [f"{name} 5" for name in ORDERS[7]]
    assert {len(stream.spans(k)) for k in range(780, 790)} == {1}
    assert [stream.spans(k)[0].images for k in (780, 781, 782)] == [64, 16, 64]


def test_cin_c_shows_the_same_images_in_the_same_order_in_every_domain():
    stream = make("cin-c-mini", BUNDLED, corruptions=["contrast", "fog", "brightness"], images=200)
    assert domains(stream) == ["contrast 5", "fog 5", "brightness 5"]
    labels = [torch.cat([stream[4 * part + i].labels for i in range(4)]) for part in range(3)]
    assert torch.equal(labels[0], labels[1])
    assert torch.equal(labels[0], labels[2])
    assert len(stream) == 12
    with pytest.raises(ValueError, match="order_number must be 0 to 9, got 10"):
        make("cin-c-mini", order_number=10)


def test_non_iid_labels_are_one_sequence_for_all_domains():
    stream = make("cin-c-noniid-mini", BUNDLED, corruptions=("contrast", "brightness"), delta=0.1)
    labels = torch.cat([stream[k].labels for k in range(47)])
    assert torch.equal(labels, torch.cat([stream[k].labels for k in range(47, 94)]))
    assert (labels.diff() == 0).double().mean() > 0.9
    sorted_labels = torch.cat([make("cin-c-noniid-mini", BUNDLED, delta=0)[k].labels for k in range(47)])
    assert torch.equal(sorted_labels, sorted_labels.sort().values)
    assert len(make("cin-c-noniid", imagenet_names(), scale="imagenet")) == 11_730


def test_the_order_of_cin_c_non_iid_has_the_recorded_runs_and_largest_label_counts():
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(1000), 50))
    sequence = labels[Dirichlet(0.1).draw(labels, np.random.default_rng(0))]
    assert len(sequence) / (1 + np.count_nonzero(np.diff(sequence))) == pytest.approx(1.07, abs=0.01)
    batches = sequence[: 781 * 64].reshape(781, 64)
    assert np.mean([np.bincount(batch).max() for batch in batches]) == pytest.approx(2.6, abs=0.15)


# --- Stored files


def write_imagenet_c(root: Path, names: tuple[str, ...], classes: int = 3, each: int = 2) -> None:
    """Noise as JPEGs, another one for each corruption, class and image."""
    for number, name in enumerate(names):
        for label in range(classes):
            folder = root / name / "5" / f"n{label:08d}"
            folder.mkdir(parents=True)
            for i in range(each):
                random_ = np.random.default_rng([number, label, i])
                small = Image.fromarray(random_.integers(0, 256, (7, 7, 3), np.uint8))
                small.resize((224, 224)).save(folder / f"val_{label}_{i}.JPEG")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stored") / "ImageNet-C"
    write_imagenet_c(root, ("fog", "snow", "contrast"))
    return root


@pytest.mark.parametrize("around", [False, True])
def test_stored_files_are_shown_as_they_are_under_the_right_domain(stored: Path, around: bool):
    root = stored.parent if around else stored
    stream = make("cin-c", root=root, classes=3, corruptions=("snow", "fog"), batch=4, seed=5)
    assert len(stream) == 4
    first, second = stream[0], stream[2]
    assert (str(first.domain), str(second.domain)) == ("snow 5", "fog 5")
    assert torch.equal(first.labels, second.labels)
    for batch, name in ((first, "snow"), (second, "fog")):
        folder = datasets.folder(stored / name / "5", resize=None, crop=224)
        known = {tuple(image.ravel()[:600]): int(label) for image, label in zip(*folder[:], strict=True)}
        shown = (batch.images * 255).round().byte().permute(0, 2, 3, 1).numpy()
        assert [known[tuple(image.ravel()[:600])] for image in shown] == batch.labels.tolist()


def test_a_folder_is_listed_once_and_a_file_that_is_missing_is_named(tmp_path: Path):
    write_imagenet_c(tmp_path, ("fog", "snow"), classes=2, each=1)
    stream = make("cin-c", root=tmp_path, classes=2, corruptions=("fog", "snow"), order=None, batch=2)
    (tmp_path / "snow" / "5" / "n00000001" / "val_1_0.JPEG").unlink()
    Image.new("RGB", (224, 224)).save(tmp_path / "fog" / "5" / "n00000000" / "aaa.JPEG")
    assert len(stream[0]) == 2
    with pytest.raises(DatasetError, match=r"snow/5/n00000001/val_1_0\.JPEG is missing"):
        stream[1]


def test_wrong_folders_are_refused_in_plain_words(stored: Path, tmp_path: Path):
    folder = tmp_path / "part"
    write_imagenet_c(folder, ("motion_blur", "snow"), classes=1, each=1)
    with pytest.raises(DatasetError, match=r"13 of 15 folders of ImageNet-C are missing, the first .*part/fog/5: "):
        make("cin-c", root=folder, order_number=5)
    with pytest.raises(
        DatasetError, match=r"no ImageNet-C in .*: looked for .*gaussian_noise .*found motion_blur, snow"
    ):
        make("in-c-recurring", root=folder)
    with pytest.raises(DatasetError, match="holds 3 class folders, expected 1000"):
        make("cin-c", root=stored, corruptions=("fog",))
    with pytest.raises(DatasetError, match="are corruptions: give such a folder as root="):
        make("cin-c", stored)
    with pytest.raises(ValueError, match=r"root= .* or data= .*, not both"):
        make("cin-c", BUNDLED, root=stored)
    with pytest.raises(ValueError, match=r"severity 1, 2, 3, 4 or 5, got 2\.5"):
        make("cin-c", root=stored, severity=2.5)


def test_a_domain_that_no_corruption_makes_has_a_label():
    sketch = Domain(label="sketch")
    assert (str(sketch), repr(sketch)) == ("sketch", "Domain(label='sketch')")
    assert sketch != Domain()
    assert sketch == pickle.loads(pickle.dumps(Domain(label="sketch")))
    stream = Stream(BUNDLED, hold(sketch, 64))
    assert str(stream[0].domain) == "sketch"


# --- IN-C recurring


def test_the_subset_is_what_pythons_generator_gives_after_one_seed():
    ids = [f"n{i}" for i in range(50_000)]
    expected = list(ids)
    random.seed(1)
    random.shuffle(expected)
    expected = random.sample(expected, 5000)
    assert draw_subset(ids, 5000) == expected
    assert ids[0] == "n0"  # the list itself is not shuffled
    with pytest.raises(DatasetError, match="cannot draw 4 images from 3"):
        draw_subset(ids[:3], 4)


def test_in_c_recurring_visits_5000_images_and_says_when_they_are_not_the_published_ones():
    data = imagenet_names()
    with pytest.warns(UserWarning, match="'in-c-recurring' draws its images from the sorted names"):
        stream = make("in-c-recurring", data, scale="imagenet")
    assert len(stream) == 6_320
    assert domains(stream, 316) == ["gaussian_noise 5", "shot_noise 5", "impulse_noise 5", "contrast 5"]
    assert stream.spans(6_319)[0].visit == 19
    assert isinstance(stream, Stream)
    chosen = draw_subset(list(data.names), 5000)
    assert [data.names[place] for place in stream.data.places] == chosen
    shown = stream.passes.images(5, stream.schedule.start(5), stream.schedule.start(5), stream.schedule.start(5) + 64)
    assert shown.tolist() == list(range(64))  # in the order in which they were drawn


def test_lists_of_images_are_checked_against_the_published_hashes(tmp_path: Path, stored: Path):
    listed = tmp_path / "ids.txt"
    listed.write_text("n00000000/val_0_1.JPEG\nn00000002/val_2_0.JPEG\n")
    for subset in ("random", "robustbench"):
        with pytest.raises(DatasetError, match=r"ids\.txt is not the published list: its 2 lines have SHA-256"):
            make("in-c-recurring", root=stored, classes=3, corruptions=("fog",), ids=listed, subset=subset)
    with pytest.raises(DatasetError, match=r"cannot read the list of images .*none\.txt"):
        make("in-c-recurring", root=stored, classes=3, corruptions=("fog",), ids=tmp_path / "none.txt")
    with pytest.raises(DatasetError, match="'robustbench' needs its list of images"):
        make("in-c-recurring", root=stored, classes=3, corruptions=("fog",), subset="robustbench")
    assert read_ids(listed, digest(["n00000000/val_0_1.JPEG", "n00000002/val_2_0.JPEG"])) == read_ids(listed)
    with pytest.raises(ValueError, match="chooses images by their names, and these have none"):
        make("in-c-recurring", BUNDLED, ids=listed)


def test_images_of_a_list_are_found_by_name_and_missing_ones_are_named():
    names = ["a/1.JPEG", "a/2.JPEG", "b/3.JPEG"]
    assert datasets.subset.places_of(["b/3.JPEG", "a/1.JPEG"], names) == [2, 0]
    with pytest.raises(DatasetError, match=r"1 of the 2 images that were chosen .* the first c/4\.JPEG"):
        datasets.subset.places_of(["a/1.JPEG", "c/4.JPEG"], names)


def test_a_subset_of_stored_files_is_the_same_under_every_corruption_and_at_every_visit(stored: Path):
    with pytest.warns(UserWarning, match="sorted names"):
        stream = make(
            "in-c-recurring", root=stored, classes=3, corruptions=("fog", "snow"), images=4, visits=2, batch=4
        )
    assert [len(batch) for batch in stream] == [4] * 4
    assert len({tuple(batch.labels.tolist()) for batch in stream}) == 1
    assert torch.equal(stream[0].images, stream[2].images)
    assert not torch.equal(stream[0].images, stream[1].images)


def test_petta_draws_its_labels_anew_at_every_corruption_and_visit():
    stream = make("petta-recurring-mini", BUNDLED, images=128, visits=2, batch=128)
    assert domains(stream, 15) == [f"{name} 5" for name in ORDERS[5]]
    assert len({tuple(stream[k].labels.tolist()) for k in range(30)}) == 30
    counts = {tuple(np.bincount(stream[k].labels, minlength=10)) for k in (0, 7, 29)}
    assert len(counts) == 1  # of the same images


# --- IN-D109


def test_the_109_classes_are_in_alphabetical_order_and_stand_for_different_classes_of_imagenet():
    assert len(CLASSES) == len(set(D109_INDICES)) == 109
    assert list(CLASSES) == sorted(CLASSES)
    assert max(D109_INDICES) < 1000
    by_name = dict(zip(CLASSES, D109_INDICES, strict=True))
    assert (by_name["duck"], by_name["ocean"], by_name["zebra"], CLASSES.index("t-shirt")) == (103, 628, 340, 92)


def write_pictures(root: Path, domain: str, classes: tuple[str, ...]) -> None:
    for number, name in enumerate(classes):
        (root / domain / name).mkdir(parents=True)
        Image.new("RGB", (300, 260), (2 * number, len(domain), 0)).save(root / domain / name / f"{name}.png")


def test_in_d109_has_the_published_length_from_lists(tmp_path: Path):
    for domain, count in DOMAINS.items():
        lines = [f"{domain}/{CLASSES[i % 109]}/{i}.jpg {i % 109}" for i in range(count)]
        (tmp_path / f"{domain}_list.txt").write_text("\n".join(lines) + "\n")
    stream = make("in-d109-recurring", root=tmp_path, lists=tmp_path, scale="imagenet")
    assert len(stream) == 24_400
    assert domains(stream, 1220) == list(DOMAINS)
    assert stream.spans(1220)[0].visit == 1
    assert stream.classes == CLASSES
    (tmp_path / "sketch_list.txt").write_text("sketch/ant/1.jpg 2\nsketch/ant/2.jpg 109\n")
    with pytest.raises(DatasetError, match=r"line 2 of .*sketch_list\.txt is 'sketch/ant/2\.jpg 109'"):
        make("in-d109-recurring", root=tmp_path, lists=tmp_path)


@pytest.mark.filterwarnings("ignore:.*the published set")
def test_in_d109_reads_folders_and_merges_those_that_are_one_class(tmp_path: Path):
    for domain in DOMAINS:
        write_pictures(tmp_path, domain, (*CLASSES, "couch", "hot_tub", "ceiling_fan", "real_but_no_class"))
    stream = make("in-d109-recurring", root=tmp_path, visits=2, batch=112, seed=1)
    assert len(stream) == 8
    batch = stream[1]
    assert (str(batch.domain), batch.spans[0].visit, tuple(batch.images.shape)) == ("infograph", 0, (112, 3, 224, 224))
    counts = Counter(batch.labels.tolist())
    assert {CLASSES[label] for label, count in counts.items() if count == 2} == {"bed", "bathtub", "fan"}
    red = (batch.images[:, 0, 100, 100] * 255).round().long() // 2
    single = red < 109
    assert single.sum() == 109
    assert torch.equal(red[single], batch.labels[single])
    assert torch.equal(stream[5].labels, batch.labels)
    for path in (tmp_path / "painting" / "ant", tmp_path / "painting" / "bee"):
        next(path.iterdir()).unlink()
    with pytest.raises(DatasetError, match=r"no images of 2 of the 109 classes in .*painting: ant, bee;"):
        make("in-d109-recurring", root=tmp_path)


def test_in_d109_warns_when_it_is_not_the_published_set(tmp_path: Path):
    write_pictures(tmp_path, "clipart", CLASSES)
    with (
        pytest.warns(UserWarning, match="clipart has 109 images, the published set 16049"),
        pytest.raises(DatasetError, match=r"no domain 'infograph' in .*: looked for the folder"),
    ):
        make("in-d109-recurring", root=tmp_path)
    with pytest.raises(ValueError, match="give root= instead of data"):
        make("in-d109-recurring", BUNDLED)


def test_the_small_form_of_in_d109_has_different_images_in_every_domain():
    stream = make("in-d109-recurring-mini", BUNDLED, visits=1)
    assert isinstance(stream, RecurringStream)
    places = [part.data.places for part in stream.streams]
    assert sorted(np.concatenate(places).tolist()) == list(range(3000))
    assert [len(each) for each in places] == pytest.approx([3000 * n / 77_973 for n in DOMAINS.values()], abs=1)
    with pytest.raises(ValueError, match="2 images are too few"):
        make("in-d109-recurring-mini", (np.zeros((2, 8, 8, 3), np.uint8), [0, 1]))


class Thousand(nn.Module):
    """Logit c of an image is c times its mean, so that any class can be found again."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.scale * images.mean(dim=(1, 2, 3))[:, None] * torch.arange(1000.0)


def test_a_network_of_a_thousand_classes_answers_with_the_selected_ones_in_their_order():
    model = Thousand().eval()
    selected = select_classes(model, D109_INDICES)
    images = torch.rand(4, 3, 8, 8)
    assert torch.equal(selected(images), model(images)[:, list(D109_INDICES)])
    assert not selected.training
    assert [parameter is model.scale for parameter in selected.parameters()] == [True]
    assert list(selected.state_dict()) == ["model.scale"]
    with pytest.raises(ValueError, match="the model has 1000 classes, but class 1000 is to be selected"):
        select_classes(model, [0, 1000])(images)
    with pytest.raises(ValueError, match="different numbers of classes"):
        select_classes(model, [1, 1])


def test_an_adapter_adapts_a_network_with_selected_classes():
    adapter = tidefast.adapt(select_classes(models.load("bundled-resnet"), [7, 1, 4]), "eta", reset="asr")
    batch = make("clean", BUNDLED)[0]
    assert adapter(batch.images).shape == (64, 3)
    assert adapter.num_classes == 3
    assert adapter.last.concentration is not None


# --- CIFAR-C


@pytest.mark.parametrize(
    ("name", "group", "batches"),
    [
        ("cifar10-c", "easy", 250),
        ("cifar10-c", "medium", 300),
        ("cifar10-c", "hard", 150),
        ("cifar100-c", "easy", 350),
        ("cifar100-c", "medium", 250),
        ("cifar100-c", "hard", 150),
    ],
)
def test_a_visit_of_a_cifar_group_has_the_published_length(name: str, group: str, batches: int):
    data = np.broadcast_to(np.zeros((1, 1, 1, 1), np.uint8), (10_000, 32, 32, 3)), np.arange(10_000) % 10
    stream = make(name, data, group=group)
    assert len(stream) == 1000 * batches
    assert stream.spans(0)[0].images == 200
    assert stream.spans(999 * batches)[0] == Span(stream.spans(0)[0].domain, 999, 200)


def test_the_groups_of_cifar_hold_no_corruption_twice():
    for name, left_out in (("cifar10-c", {"brightness"}), ("cifar100-c", set())):
        members = [corruption for group in registry.get(name).groups.values() for corruption in group]
        assert len(members) == len(set(members))
        assert set(corruptions.IMAGENET_C) - set(members) == left_out
    with pytest.raises(ValueError, match="group must be one of 'easy', 'medium', 'hard', got 'extreme'"):
        make("cifar10-c-mini", group="extreme")


def write_cifar_c(root: Path, names: tuple[str, ...], each: int = 20, classes: int = 10) -> None:
    root.mkdir(parents=True, exist_ok=True)
    np.save(root / "labels.npy", np.tile(np.arange(each, dtype=np.uint8) % classes, 5))
    for number, name in enumerate(names):
        images = np.zeros((5 * each, 32, 32, 3), np.uint8)
        images[:, 0, 0, 0] = np.repeat(np.arange(1, 6), each)  # its severity,
        images[:, 0, 0, 1] = number  # corruption
        images[:, 0, 0, 2] = np.tile(np.arange(each), 5)  # and place
        np.save(root / f"{name}.npy", images)


@pytest.mark.parametrize("severity", [1, 4, 5])
def test_a_severity_of_cifar_c_is_its_fifth_of_the_rows(tmp_path: Path, severity: int):
    names = ("gaussian_noise", "shot_noise", "impulse_noise")
    write_cifar_c(tmp_path / "CIFAR-10-C", names)
    stream = make("cifar10-c", root=tmp_path, group="hard", severity=severity, visits=2, batch=10)
    assert len(stream) == 12
    for k, batch in enumerate(stream):
        made = (batch.images[:, :, 0, 0] * 255).round().long()
        assert set(made[:, 0].tolist()) == {severity}
        assert set(made[:, 1].tolist()) == {k // 2 % 3}
        assert torch.equal(made[:, 2] % 10, batch.labels)
        assert str(batch.domain) == f"{names[k // 2 % 3]} {severity}"
    assert torch.equal(stream[0].images, stream[6].images)


def test_mapped_images_travel_as_a_path(tmp_path: Path):
    write_cifar_c(tmp_path, ("fog",), each=200, classes=100)
    stream = make("cifar100-c", root=tmp_path, corruptions=("fog",), visits=1)
    before = stream[0]
    assert len(stream.classes) == 100
    parcel = pickle.dumps(stream)
    assert len(parcel) < 20_000 < (tmp_path / "fog.npy").stat().st_size
    assert torch.equal(pickle.loads(parcel)[0].images, before.images)


def test_wrong_files_of_cifar_c_are_named(tmp_path: Path):
    write_cifar_c(tmp_path, ("fog", "snow"))
    with pytest.raises(
        DatasetError, match=r"no complete CIFAR-10-C in .* lacks motion_blur\.npy, elastic_transform\.npy"
    ):
        make("cifar10-c", root=tmp_path)
    with pytest.raises(ValueError, match=r"severity 1, 2, 3, 4 or 5, got 6"):
        make("cifar10-c", root=tmp_path, corruptions=("fog",), severity=6)
    whole = (tmp_path / "fog.npy").read_bytes()
    (tmp_path / "fog.npy").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match=r"fog\.npy is missing, truncated or no array file"):
        make("cifar10-c", root=tmp_path, corruptions=("fog",))
    np.save(tmp_path / "fog.npy", np.zeros((100, 32, 32), np.uint8))
    with pytest.raises(DatasetError, match=r"fog\.npy holds uint8 \[100, 32, 32\], expected images"):
        make("cifar10-c", root=tmp_path, corruptions=("fog",))
    np.save(tmp_path / "fog.npy", np.zeros((95, 32, 32, 3), np.uint8))
    with pytest.raises(DatasetError, match=r"fog\.npy holds 95 images, labels\.npy 100"):
        make("cifar10-c", root=tmp_path, corruptions=("fog",))
    np.save(tmp_path / "labels.npy", np.full(100, 10))
    with pytest.raises(DatasetError, match=r"labels 10\.\.10, expected 0\.\.9"):
        make("cifar10-c", root=tmp_path, corruptions=("snow",))
    np.save(tmp_path / "labels.npy", np.zeros(99, np.int64))
    with pytest.raises(DatasetError, match=r"labels\.npy holds int64 \[99\]"):
        make("cifar10-c", root=tmp_path, corruptions=("snow",))


# --- CDC


def runs(turns: np.ndarray) -> np.ndarray:
    edges = np.flatnonzero(np.diff(turns)) + 1
    return np.diff(np.concatenate([[0], edges, [len(turns)]]))


@pytest.mark.parametrize(
    ("delta", "segments", "longest", "shortest"), [(0.1, 8.1, 78, 1.9), (1.0, 11.4, 62, 3.8), (10.0, 11.4, 46, 16)]
)
def test_cdc_has_the_recorded_segments(delta: float, segments: float, longest: float, shortest: float):
    visits = [runs(Segments(delta).draw([79] * 4, np.random.default_rng(seed))) for seed in range(2000)]
    assert np.mean([len(lengths) for lengths in visits]) == pytest.approx(segments, abs=0.2)
    assert np.mean([lengths.max() for lengths in visits]) == pytest.approx(longest, abs=1.5)
    assert np.mean([lengths.min() for lengths in visits]) == pytest.approx(shortest, abs=0.4)


@pytest.mark.parametrize("domain_order", [Segments(0.1), Segments(10, slots=5), Runs()])
def test_every_order_of_domains_shows_each_batch_of_each_domain_once(domain_order):
    for seed in range(50):
        turns = domain_order.draw([5, 1, 12], np.random.default_rng(seed))
        assert np.bincount(turns).tolist() == [5, 1, 12]


def test_runs_are_drawn_uniformly_from_the_domains_and_batches_that_are_left():
    first = [Runs().draw([10, 10], np.random.default_rng(seed)) for seed in range(3000)]
    assert np.mean([turns[0] for turns in first]) == pytest.approx(0.5, abs=0.03)
    # The first run is uniform on 1..10; the next one is of the same domain with probability 1/2 while it has batches.
    switch = np.mean([turns[0] != turns[1] for turns in first])
    assert switch == pytest.approx(0.1 * 0.5, abs=0.015)


def test_cdc_has_the_published_length_and_a_fresh_schedule_with_all_batches_at_every_visit():
    with pytest.warns(UserWarning, match="sorted names"):
        stream = make("cdc", imagenet_names(), delta=10, scale="imagenet", seed=1)
    assert len(stream) == 6_320
    schedules = set()
    for visit in range(20):
        spans = [stream.spans(k)[0] for k in range(316 * visit, 316 * (visit + 1))]
        assert {span.visit for span in spans} == {visit}
        assert Counter(str(span.domain) for span in spans).most_common()[-1][1] == 79
        assert Counter(span.images for span in spans) == {64: 312, 8: 4}
        schedules.add(tuple(str(span.domain) for span in spans))
    assert len(schedules) == 20
    second = make("cdc-mini", delta=10, seed=2, visits=1)
    assert [second.spans(k)[0].domain for k in range(32)] == [
        make("cdc-mini", delta=10, seed=1, visits=2).spans(k)[0].domain for k in range(32, 64)
    ]


@pytest.mark.parametrize("route", ["dirichlet", "multinomial"])
def test_cdc_is_in_c_recurring_in_another_order(route: str):
    plain = make("in-c-recurring-mini", BUNDLED, images=200, visits=2, seed=4)
    mixed = make("cdc-mini", BUNDLED, images=200, visits=2, route=route, seed=4)
    assert len(mixed) == len(plain) == 32
    assert domains(mixed) != domains(plain)
    found: dict[str, dict[tuple[Domain, int], list[torch.Tensor]]] = {}
    for key, stream in (("plain", plain), ("mixed", mixed)):
        found[key] = defaultdict(list)
        for batch in stream:
            found[key][batch.domain, batch.spans[0].visit].append(batch.images)
    assert found["plain"].keys() == found["mixed"].keys()
    for place, batches in found["plain"].items():
        assert all(map(torch.equal, batches, found["mixed"][place]))


def test_a_tour_refuses_what_does_not_fit():
    stream = Stream(BUNDLED, hold(Domain(), 192) * 2, cross=False)
    with pytest.raises(ValueError, match="fall into 4 equal visits, got streams of 6 batches"):
        RecurringStream([stream], visits=4)
    with pytest.raises(ValueError, match="steps=7 is more than the 6 batches of 2 visits"):
        RecurringStream([stream], visits=2, steps=7)
    with pytest.raises(IndexError, match="step 6 is outside"):
        RecurringStream([stream], visits=2)[6]
    with pytest.raises(ValueError, match="route must be one of"):
        make("cdc-mini", route="random")
    with pytest.raises(ValueError, match="delta must lie in"):
        make("cdc-mini", delta=0)


# --- Batch sizes and single images


def run(stream: Seekable, **options: object) -> History:
    history = History()
    adapter = tidefast.adapt(
        models.load("bundled-resnet"), "eta", reset=resets.ASR(alpha0=0.999), callbacks=[history], **options
    )
    for batch in stream:
        assert torch.isfinite(adapter(batch.images)).all()
    return history


def test_the_smallest_batches_adapt_and_trigger_once_each():
    history = run(make("in-c-recurring-mini", BUNDLED, batch=2, steps=20), gather=1)
    assert all(record.concentration is not None and record.skipped is None for record in history)
    assert any(record.reset_fraction > 0 for record in history)


def test_single_images_adapt_and_trigger_once_for_each_window():
    history = list(run(make("in-c-recurring-mini", BUNDLED, batch=1, steps=64), window=8))
    assert len(history) == 64
    steps = [record for record in history if record.skipped is None]
    assert [record.step for record in steps] == list(range(8, 65, 8))
    assert all(record.concentration is not None for record in steps)
    assert any(record.reset_fraction > 0 for record in steps)
    assert all(record.concentration is None and not record.reset_fraction for record in history if record.skipped)


def test_the_batch_size_changes_no_image():
    sizes = {size: make("in-c-recurring-mini", BUNDLED, batch=size, images=128, visits=1) for size in (128, 16, 2)}
    for size, stream in sizes.items():
        assert len(stream) == 4 * 128 // size
        first = torch.cat([stream[k].images for k in range(128 // size)])
        assert torch.equal(first, sizes[128][0].images)


def test_an_image_set_of_ones_own_runs_through_every_protocol_that_corrupts():
    images = np.random.default_rng(0).integers(0, 256, (120, 16, 16, 3), np.uint8)
    data = ImageSet(images, np.arange(120) % 4, ("a", "b", "c", "d"))
    for name in (*FULL, *MINI):
        if name != "in-d109-recurring":
            assert make(name, data, steps=3, batch=20)[2].images.shape == (20, 3, 16, 16)
