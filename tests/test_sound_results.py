"""Results that cannot be silently wrong: a damaged run is refused with the name of the file, never read otherwise."""

from __future__ import annotations

import itertools
import json
import random
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tidefast
from tidefast import bench, cli
from tidefast.bench.ledger import DIGESTS, SEGMENTS, SPANS, STEPS, TIMING, Ledger
from tidefast.bench.results import ENVIRONMENT, RESULT
from tidefast.errors import DamagedRunError

FIELDS = {"stream": "drift", "method": "tent", "steps": 12, "batch": 4, "gather": 1, "seed": 1}
COMMAND = [f"--{name}={value}" for name, value in FIELDS.items()]


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """Nine of twelve batches, in three segments."""
    folder = tmp_path_factory.mktemp("sound") / "run"
    calls = itertools.count(1)
    bench.run(bench.Experiment.of(FIELDS), folder, snapshot_every=3, should_stop=lambda: next(calls) == 9)
    assert len(segments(folder)) == 3
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "run"
    assert bench.run(bench.Experiment.of(FIELDS), folder).complete
    return folder


def segments(folder: Path) -> list[Path]:
    return sorted((folder / SEGMENTS).iterdir())


def content(folder: Path) -> dict[str, object]:
    """All that can be read of a run."""
    run = bench.load(folder)
    columns = [run.steps, run.spans]
    values = {f"{i}{name}": table[name].tolist() for i, table in enumerate(columns) for name in table}
    measures = {name: vars(what) for name, what in run.measures.items()}
    return {**values, "seconds": run.seconds.tolist(), "measures": measures, "result": run.result, "total": run.total}


def same(one: dict[str, object], other: dict[str, object]) -> bool:
    return json.dumps(one, default=str) == json.dumps(other, default=str)


def flipped(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def bits_of_every_kind(path: Path, count: int) -> list[int]:
    """Each position within a byte, over the whole file: its head, its pages, its footer and its end."""
    size, draw = path.stat().st_size, random.Random(0)
    ends = [8 * byte + bit for byte in (0, 3, size - 9, size - 8, size - 5, size - 4, size - 1) for bit in range(8)]
    return ends + [8 * draw.randrange(size) + at % 8 for at in range(count)]


def test_no_flipped_bit_of_a_segment_reads_as_other_values(begun, tmp_path):
    folder = shutil.copytree(begun, tmp_path / "run")
    whole, path = content(begun), segments(folder)[1]
    data = path.read_bytes()
    for bit in bits_of_every_kind(path, 344):
        flipped(path, bit)
        with pytest.raises(DamagedRunError, match=path.name):
            content(folder)
        path.write_bytes(data)
    assert same(content(folder), whole)


@pytest.mark.parametrize("name", [STEPS, SPANS, TIMING, RESULT, ENVIRONMENT, DIGESTS])
def test_no_flipped_bit_of_a_finished_run_reads_as_other_values(name, finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    whole, path = content(finished), folder / name
    data = path.read_bytes()
    for bit in bits_of_every_kind(path, 80):
        flipped(path, bit)
        try:
            found = content(folder)
        except tidefast.FolderError:
            continue
        finally:
            path.write_bytes(data)
        assert name == DIGESTS  # white space between two digests is no value
        assert same(found, whole)


def delete(paths: list[Path]) -> None:
    paths[1].unlink()


def delete_the_first(paths: list[Path]) -> None:
    paths[0].unlink()


def delete_the_last(paths: list[Path]) -> None:
    paths[2].unlink()


def truncate(paths: list[Path]) -> None:
    paths[1].write_bytes(paths[1].read_bytes()[:-100])


def empty(paths: list[Path]) -> None:
    paths[1].write_bytes(b"")


def duplicate(paths: list[Path]) -> None:
    shutil.copy(paths[0], paths[0].with_name(paths[0].name.replace("0000000003", "0000000005")))


def swap(paths: list[Path]) -> None:
    first, second = paths[0].read_bytes(), paths[1].read_bytes()
    paths[0].write_bytes(second)
    paths[1].write_bytes(first)


def swap_names(paths: list[Path]) -> None:
    ends = ("0000000003", "0000000006")
    renamed = [paths[i].with_name(paths[i].name.replace(ends[i], ends[1 - i])) for i in (0, 1)]
    for path, name in zip(paths, renamed, strict=False):
        path.rename(name)


def double(paths: list[Path]) -> None:
    shutil.copy(paths[1], paths[1].with_name(f"steps-0000000006-{'0' * 32}.parquet"))


def as_before_digests(paths: list[Path]) -> list[Path]:
    return [path.rename(path.with_name(f"{path.name[:16]}.parquet")) for path in paths]


DAMAGES = (delete, delete_the_first, delete_the_last, truncate, empty, duplicate, swap, swap_names, double)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("before_digests", [False, True])
def test_a_run_with_damaged_segments_is_not_gone_on_with(damage, before_digests, begun, tmp_path, capsys):
    folder = shutil.copytree(begun, tmp_path / "run")
    damage(as_before_digests(segments(folder)) if before_digests else segments(folder))
    left = sorted(folder.rglob("*.parquet"))
    assert cli.main(["run", *COMMAND, "--out", str(folder)]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("tidefast: error: ")
    assert str(folder / SEGMENTS) in said
    assert not (folder / RESULT).exists()
    assert sorted(folder.rglob("*.parquet")) == left
    assert cli.main(["run", *COMMAND, "--out", str(folder), "--fresh"]) == 0
    assert bench.load(folder).batches == 12


def test_a_run_of_before_digests_is_read_and_gone_on_with(begun, finished, tmp_path):
    folder = shutil.copytree(begun, tmp_path / "run")
    as_before_digests(segments(folder))
    assert same(content(folder), content(begun))
    assert bench.run(bench.Experiment.of(FIELDS), folder).complete
    assert (folder / STEPS).read_bytes() == (finished / STEPS).read_bytes()
    (folder / DIGESTS).unlink()
    np.testing.assert_array_equal(bench.load(folder).steps["correct"], bench.load(finished).steps["correct"])


@pytest.mark.parametrize("name", Ledger.FILES)
def test_a_finished_run_that_lacks_a_file_is_refused(name, finished, tmp_path, capsys):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / name).unlink()
    assert cli.main(["run", *COMMAND, "--out", str(folder)]) == 1
    assert name in capsys.readouterr().err
    assert cli.main(["report", str(folder)]) == 1
    assert name in capsys.readouterr().err


def test_a_finished_run_of_before_digests_with_too_few_rows_is_refused(finished, tmp_path):
    """As a run ended whose middle segment had been deleted."""
    import pyarrow.parquet

    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / DIGESTS).unlink()
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(folder / STEPS).slice(0, 9), folder / STEPS)
    with pytest.raises(DamagedRunError, match=r"steps\.parquet holds 9 of 12 batches"):
        bench.load(folder)


def test_what_a_killed_process_left_half_written_stops_nothing(begun, tmp_path):
    folder = shutil.copytree(begun, tmp_path / "run")
    (folder / SEGMENTS / ".steps-0000000012-00.parquet.1234.tmp").write_bytes(b"half")
    assert bench.run(bench.Experiment.of(FIELDS), folder).complete
    assert not (folder / SEGMENTS).exists()


def test_a_full_disk_is_said_with_the_file_and_the_run_goes_on_later(finished, tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "tidefast", "run", *COMMAND, "--snapshot-every=3", "--threads=1", "--out", folder]

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))  # a segment has room, a snapshot has not

    full = subprocess.run(command, capture_output=True, text=True, preexec_fn=little_room)
    assert full.returncode == 2
    assert full.stderr.count("\n") == 1
    assert "snapshot.safetensors" in full.stderr
    assert not list(folder.rglob("*.tmp"))
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert (folder / SPANS).read_bytes() == (finished / SPANS).read_bytes()


def test_links_lead_to_nothing_that_is_deleted_or_made(begun, tmp_path):
    folder = shutil.copytree(begun, tmp_path / "run")
    (folder / SEGMENTS).rename(tmp_path / "others")
    (folder / SEGMENTS).symlink_to(tmp_path / "others")
    for fresh in (False, True):
        with pytest.raises(tidefast.FolderError, match="segments is a symbolic link"):
            bench.run(bench.Experiment.of(FIELDS), folder, fresh=fresh)
    assert len(list((tmp_path / "others").iterdir())) == 3
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(tidefast.FolderError, match=r"link to .*nowhere, which is not there"):
        bench.run(bench.Experiment.of(FIELDS), tmp_path / "link")
