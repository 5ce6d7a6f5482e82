"""CCC in its published files: writing, killing, reading back, and the orders of several loader workers."""

from __future__ import annotations

import argparse
import io
import json
import operator
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tidefast.commands import generate as command_generate
from tidefast.datasets import DatasetError, bundled, folder
from tidefast.errors import FolderError
from tidefast.streams import CCCMiniRecipe, CCCRecipe, Domain, Shards, StreamError, make
from tidefast.streams.generation import generate
from tidefast.streams.pool import mapped
from tidefast.streams.shard_files import Info, ShardWriter, index_of, scan
from tidefast.streams.shards import find_shards

RECIPE = CCCMiniRecipe(matrix="synthetic", speed=30, total=300)
PATIENCE = 120


def command(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    command_generate.arguments(parser)
    command_generate.run(parser.parse_args(arguments))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("serial_*.tar")}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Ten steps of 30 images, three to a shard: shards of 90 images, four of them."""
    return generate(RECIPE, None, tmp_path_factory.mktemp("made"), seed=43, images_per_shard=80)


# --- Writing


def test_the_layout_is_the_published_one(made: Path):
    assert made.name == "baseline_0_transition+speed_30_seed_43"
    assert sorted(contents(made)) == [f"serial_0000{number}.tar" for number in range(4)]
    with tarfile.open(made / "serial_00001.tar") as tar:
        names = tar.getnames()
        assert len(names) == 3 * 90
        assert names[:4] == ["sample_0.info", "sample_0.input.png", "sample_0.output.cls", "sample_1.info"]
        info = tar.extractfile("sample_7.info").read().decode()
        label = int(tar.extractfile("sample_7.output.cls").read())
    # Sample 7 of the second shard is image 97 of the stream, in the fourth step.
    assert info.startswith(f"++dir++{bundled().classes[label]}++name++")
    assert info.endswith("++n1++gaussian_noise++s1++5.0++n2++impulse_noise++s2++0.75")


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        (
            "++dir++n01440764++name++a_1.JPEG++n1++jpeg++s1++0.25++n2++elastic++s2++5.0",
            (("jpeg", 0.25), ("elastic", 5)),
        ),
        ("++dir++a++name++b++n1++fog++s1++0.0++n2++snow++s2++0.0\n", (("fog", 0), ("snow", 0))),
    ],
)
def test_info_is_read_and_written_as_it_stands(text: str, domain: tuple):
    info = Info.parse(text)
    assert info.domain == Domain(*domain)
    assert info.text() == text.strip()
    with pytest.raises(ValueError, match=r"expected \+\+dir\+\+"):
        Info.parse(text.replace("++s1++", "++s3++"))


def test_shards_hold_the_images_of_the_stream(made: Path):
    stored = make("ccc-shards", path=made, batch=32)
    fly = make("ccc-mini", seed=43, batch=32, matrix="synthetic", speed=30, total=360)
    assert len(stored) == len(fly) == 12
    assert stored.classes == fly.classes
    for k in range(12):
        ours, theirs = stored[k], fly[k]
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)
        assert (ours.spans, ours.domain, ours.index) == (theirs.spans, theirs.domain, theirs.index)
    assert torch.equal(stored[-1].images, stored[11].images)


def test_jpeg_shards_of_a_folder_hold_what_the_stream_decodes(tmp_path: Path):
    random = np.random.default_rng(0)
    for number in range(12):
        place = tmp_path / "data" / ("n02" if number % 3 else "n01")
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 256, (5, 5, 3), np.uint8))
        coarse.resize((80 + 9 * number, 120 - 5 * number), Image.Resampling.BICUBIC).save(place / f"val_{number}.JPEG")
    data = folder(tmp_path / "data", resize=48, crop=48, verify=False)
    command(
        *("--data", str(tmp_path / "data"), "--size", "48", "--speed", "10", "--total", "30"),
        *("--images-per-shard", "20", "--seed", "44", "--out", str(tmp_path / "out")),
    )
    stored = make("ccc-shards", path=tmp_path / "out", level="hard", speed=10, seed=44, batch=8)
    assert find_shards(stored.paths[0].parent) == list(stored.paths)
    fly = make("ccc", data, speed=10, total=40, seed=44, batch=8)
    assert len(stored) == len(fly) == 5
    for k in range(5):
        assert np.array_equal(stored.pixels(k).images, fly.pixels(k).images)
        assert stored.spans(k) == fly.spans(k)
    with tarfile.open(stored.paths[0]) as tar:
        assert tar.getnames()[1] == "sample_0.input.jpg"
        first = Info.parse(tar.extractfile("sample_0.info").read().decode())
    assert first.folder in ("n01", "n02")
    assert (tmp_path / "data" / first.folder / first.file).exists()


RUN = """
import argparse, sys
from tidefast.commands import generate as c
if __name__ == "__main__":
    p = argparse.ArgumentParser()
    c.arguments(p)
    c.run(p.parse_args(sys.argv[1:]))
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_killed_generation_goes_on_with_other_processes_to_the_same_bytes(tmp_path: Path):
    settings = ["--matrix", "synthetic", "--speed", "60", "--images-per-shard", "180"]
    script = tmp_path / "run.py"
    script.write_text(RUN)
    # So many that it cannot end before it is killed.
    arguments = [*settings, "--out", str(tmp_path / "killed"), "--workers", "1", "--total", "1000000"]
    process = subprocess.Popen([sys.executable, script, *arguments])
    killed = tmp_path / "killed" / "baseline_0_transition+speed_60_seed_43"
    deadline = time.monotonic() + PATIENCE
    while not (killed / "serial_00001.tar").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert workers
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    while any(running(int(pid)) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(running(int(pid)) for pid in workers)
    before = {path.name: path.stat().st_mtime_ns for path in killed.glob("serial_*.tar")}
    assert len(before) >= 2
    more = ["--total", str(180 * (len(before) + 3))]
    command(*settings, *more, "--out", str(tmp_path / "killed"), "--workers", "2")
    command(*settings, *more, "--out", str(tmp_path / "whole"))
    assert len(contents(killed)) == len(before) + 3
    assert contents(killed) == contents(tmp_path / "whole" / killed.name)
    assert {name: (killed / name).stat().st_mtime_ns for name in before} == before
    assert not list(killed.glob(".*.tmp"))


@pytest.mark.slow
def test_what_goes_wrong_in_a_worker_is_told():
    with pytest.raises(ValueError, match="invalid literal"):
        list(mapped(operator.call, int, ["1", "x"], workers=1))
    with pytest.raises(StreamError, match="a worker process died"):
        list(mapped(operator.call, os._exit, [3], workers=1))


def test_more_images_only_add_shards_and_another_stream_is_refused(made: Path, tmp_path: Path):
    here = tmp_path / "made" / made.name
    shutil.copytree(made, here)
    before = contents(here)
    generate(CCCMiniRecipe(matrix="synthetic", speed=30, total=500), None, here.parent, seed=43, images_per_shard=80)
    after = contents(here)
    assert len(after) == 6
    assert {name: after[name] for name in before} == before
    with pytest.raises(FolderError, match=r"another stream \(other images per shard\)"):
        generate(RECIPE, None, here.parent, seed=43, images_per_shard=100)
    with pytest.raises(FolderError, match=r"another stream \(other kind, quality\)"):
        generate(RECIPE, None, here.parent, seed=43, images_per_shard=80, kind="jpg")
    (here / "about.json").unlink()
    with pytest.raises(FolderError, match="not made here"):
        generate(RECIPE, None, here.parent, seed=43, images_per_shard=80)


# --- Reading


def test_folders_are_found_in_both_spellings(made: Path, tmp_path: Path):
    name = "baseline_{}_transition+speed_30_seed_43"
    for spelling, level in (("0", "hard"), ("0.0", 0), ("20", "medium"), ("20.0", 20), ("12.5", 12.5)):
        shutil.copytree(made, tmp_path / name.format(spelling))
        found = make("ccc-shards", path=tmp_path, level=level, speed=30, seed=43)
        assert found.paths[0].parent.name == name.format(spelling)
        shutil.rmtree(tmp_path / name.format(spelling))
    with pytest.raises(DatasetError, match=r"no serial_00000.tar in .* of the level 'easy' with seed 43;"):
        make("ccc-shards", path=tmp_path, level="easy", speed=30, seed=43)


def test_a_missing_shard_is_the_end_of_the_stream(made: Path, tmp_path: Path):
    for number in (0, 1, 3):
        shutil.copy(made / f"serial_0000{number}.tar", tmp_path)
    stream = make("ccc-shards", path=tmp_path, batch=64)
    assert [len(batch) for batch in stream] == [64, 64, 52]
    assert len(make("ccc-shards", path=tmp_path, batch=64, ragged="drop")) == 2
    assert len(make("ccc-shards", path=tmp_path, batch=64, steps=1)) == 1


def tiny_shards(root: Path, sizes: list[int]) -> list[Path]:
    """Shards whose labels count the samples of the whole stream, so that an order can be read off them."""
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "PNG")
    label = 0
    for number, size in enumerate(sizes):
        with open(root / f"serial_{number:05d}.tar", "wb") as file:
            writer = ShardWriter(file)
            for _ in range(size):
                info = Info("n", "f", Domain(("fog", number / 4), ("snow", 0)))
                writer.add(info, picture.getvalue(), "png", label)
                label += 1
            writer.close()
    return find_shards(root)


class Worker(torch.utils.data.IterableDataset):
    """What each loader worker reads of the shards: every W-th, on end."""

    def __init__(self, sizes: list[int]) -> None:
        ends = np.cumsum(sizes)
        self.shards = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        for shard in self.shards[worker.id :: worker.num_workers]:
            yield from shard


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("sizes", [[10, 10, 10, 10, 10, 10, 10, 10], [10, 13, 4, 9, 10, 11], [7, 30, 1, 2, 5], [9, 9]])
def test_interleaved_batches_come_as_a_loader_with_four_workers_delivers_them(tmp_path: Path, sizes: list[int]):
    loader = torch.utils.data.DataLoader(Worker(sizes), batch_size=4, num_workers=4, multiprocessing_context="fork")
    expected = [batch.tolist() for batch in loader]
    shards = Shards(tiny_shards(tmp_path, sizes), batch=4, interleave=4)
    assert [shards.pixels(k).labels.tolist() for k in range(len(shards))] == expected
    true = Shards(find_shards(tmp_path), batch=4)
    assert [label for k in range(len(true)) for label in true.pixels(k).labels.tolist()] == list(range(sum(sizes)))
    assert [span.images for span in true.spans(sizes[0] // 4)] != []


def test_interleaving_goes_round_the_shards(tmp_path: Path):
    shards = Shards(tiny_shards(tmp_path, [8] * 8), batch=4, interleave=4)
    assert [shards.places(k)[0][0] for k in range(len(shards))] == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]
    assert repr(shards) == "Shards(16 steps of 4, 8 shards, interleaved as by 4 workers)"


def test_a_batch_that_crosses_shards_says_which_image_is_of_which(tmp_path: Path):
    shards = Shards(tiny_shards(tmp_path, [6, 6]), batch=4)
    assert [(str(span.domain), span.images) for span in shards.spans(1)] == [("clean", 2), ("fog 0.25", 2)]


def test_shards_travel_to_workers(made: Path):
    stream = make("ccc-shards", path=made, batch=64)
    again = pickle.loads(pickle.dumps(stream))
    assert torch.equal(again[3].images, stream[3].images)


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.97])
def test_a_truncated_archive_is_named(made: Path, tmp_path: Path, keep: float):
    whole = (made / "serial_00000.tar").read_bytes()
    broken = tmp_path / "serial_00000.tar"
    with tarfile.open(made / "serial_00000.tar") as tar:
        last = tar.getmembers()[-1]
    end = last.offset_data + 512
    for cut in (int(end * keep), int(end * keep) // 512 * 512, end):
        broken.write_bytes(whole[:cut])
        with pytest.raises(DatasetError, match=r"serial_00000\.tar is (truncated|not a shard)"):
            make("ccc-shards", path=tmp_path)


def test_what_is_no_shard_is_named(tmp_path: Path):
    path = tmp_path / "serial_00000.tar"
    for content in (b"", b"text" * 1000, bytes(10240)):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=r"serial_00000\.tar is"):
            scan(path)
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("sample_0.info"))
    with pytest.raises(DatasetError, match=r"not a shard of CCC: expected \+\+dir"):
        scan(path)
    with open(path, "wb") as file:
        writer = ShardWriter(file)
        writer.add(Info("n", "f", Domain(("fog", 1), ("snow", 0))), b"no picture", "jpg", 3)
        writer.close()
    with pytest.raises(DatasetError, match=r"serial_00000\.tar: the image of sample 0 is damaged"):
        Shards([path])[0]
    with pytest.raises(DatasetError, match="there is no shard"):
        scan(tmp_path / "serial_00001.tar")


@pytest.mark.parametrize("label", [10**29, -1, 2**31, 2**63])
def test_a_label_that_is_no_class_is_named(label: int, tmp_path: Path):
    path = tmp_path / "serial_00000.tar"
    with open(path, "wb") as file:
        writer = ShardWriter(file)
        writer.add(Info("n", "f", Domain(("fog", 1), ("snow", 0))), b"no picture", "jpg", label)
        writer.close()
    with pytest.raises(DatasetError, match=rf"serial_00000\.tar .* sample_0\.output\.cls holds the label '{label}'"):
        scan(path)


def test_an_index_is_kept_beside_the_shard_and_made_anew_when_that_changes(made: Path, tmp_path: Path):
    path = tmp_path / "serial_00000.tar"
    shutil.copy(made / path.name, path)
    first = index_of(path)
    kept = tmp_path / ".serial_00000.tar.index.npz"
    assert kept.exists()
    again = index_of(path)
    assert again.domains == first.domains
    assert again.classes == first.classes
    for column in ("offsets", "sizes", "labels", "numbers"):
        assert np.array_equal(getattr(again, column), getattr(first, column))
    kept.write_bytes(b"damaged")
    assert len(index_of(path)) == len(first)
    tiny_shards(tmp_path, [5])
    assert len(index_of(path)) == 5


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "stream 'ccc-shards' needs path: a folder with serial_00000.tar"),
        ({"path": "nowhere"}, "no serial_00000.tar in nowhere"),
        ({"path": "nowhere", "interleave": 0}, "interleave must be"),
        ({"path": "nowhere", "data": bundled()}, "takes no data"),
    ],
)
def test_bad_options_are_refused_in_plain_words(options: dict, match: str):
    with pytest.raises(ValueError, match=match):
        make("ccc-shards", **options)


def test_the_settings_are_kept_with_the_shards(made: Path):
    about = json.loads((made / "about.json").read_text())
    assert (about["stream"], about["target"], about["speeds"], about["kind"]) == ("ccc-mini", 0, [30], "png")
    assert CCCRecipe.name == "ccc"
