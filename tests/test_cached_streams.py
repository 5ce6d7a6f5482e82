"""Batches that are made once for all the runs of a sweep: the same bits, less work, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tidefast import bench
from tidefast.bench import assembly, runner, sharing
from tidefast.bench.ledger import SPANS, STEPS
from tidefast.bench.results import RESULT, SNAPSHOT
from tidefast.bench.work import Job
from tidefast.streams import CachedStream, Seekable, Span, make
from tidefast.streams.batch import RawBatch
from tidefast.streams.stream import Stream

STREAMS = {
    "ccc-mini": {"steps": 6, "batch": 16, "seed": 43},
    "in-c-recurring-mini": {"steps": 20, "batch": 300},
    "cdc-mini": {"steps": 6, "batch": 16},
}
GRID = {
    "stream": "ccc-mini",
    "method": ["source", "eta"],
    "optimizer": "adam:lr=1e-3",
    "seed": 43,
    "steps": 12,
    "batch": 8,
}


class Counted(Seekable):
    """A stream that remembers which of its batches were made, in this process and, by a file, in all."""

    def __init__(self, stream: Seekable, marks: Path | None = None) -> None:
        self.stream, self.marks, self.made = stream, marks, []

    @property
    def classes(self) -> tuple[str, ...]:
        return self.stream.classes

    def __len__(self) -> int:
        return len(self.stream)

    def spans(self, k) -> tuple[Span, ...]:
        return self.stream.spans(k)

    def pixels(self, k) -> RawBatch:
        self.made.append(k)
        if self.marks is not None:
            with open(self.marks, "a") as file:
                file.write(f"{k}\n")
        return self.stream.pixels(k)


class Doubled(Seekable):
    """A stream whose batches are not just its pixels."""

    classes = ("a", "b")

    def __len__(self) -> int:
        return 2

    def spans(self, k):
        raise NotImplementedError

    def pixels(self, k):
        raise NotImplementedError

    def __getitem__(self, k):
        return "its own"


def counted_stream(**options) -> Counted:
    return Counted(make("ccc-mini", **options), Path(os.environ["TIDEFAST_TEST_MARKS"]))


def doubled_stream(**options) -> Doubled:
    return Doubled()


@pytest.fixture(scope="module")
def marks(tmp_path_factory) -> Path:
    from loky import get_reusable_executor

    path = tmp_path_factory.mktemp("marks") / "marks"
    path.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEFAST_TEST_MARKS", str(path))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))  # the workers import this file by its name
        get_reusable_executor().shutdown()  # workers of an earlier test have an earlier environment
        yield path
        get_reusable_executor().shutdown()


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "cached"
    path.mkdir()
    return path


def small() -> Stream:
    return make("ccc-mini", steps=8, batch=8, seed=43)


def assert_same(found: RawBatch, wanted: RawBatch) -> None:
    assert (found.images.dtype, found.labels.dtype) == (wanted.images.dtype, wanted.labels.dtype)
    np.testing.assert_array_equal(found.images, wanted.images)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    assert (found.index, found.spans) == (wanted.index, wanted.spans)


@pytest.mark.parametrize("name", STREAMS)
def test_cached_batches_are_those_of_the_stream(name, folder):
    stream = make(name, **STREAMS[name])
    maker, reader = CachedStream(stream, folder), CachedStream(stream, folder)
    assert (reader.name, reader.classes, len(reader)) == (stream.name, stream.classes, len(stream))
    wanted = [stream.pixels(k) for k in range(len(stream))]
    for k, pixels in enumerate(wanted):
        assert_same(maker.pixels(k), pixels)
        assert_same(reader.pixels(k), pixels)
        assert reader.spans(k) == pixels.spans
    if name == "in-c-recurring-mini":
        assert len({len(pixels.labels) for pixels in wanted}) > 1, "no batch was short"


def test_a_second_reader_makes_nothing(folder):
    first, second = Counted(small()), Counted(small())
    for batch, again in zip(CachedStream(first, folder), CachedStream(second, folder), strict=True):
        assert (batch.images == again.images).all()
    assert first.made == list(range(8))
    assert second.made == []


def test_the_last_batch_is_also_the_one_before_the_first(folder):
    cached = CachedStream(small(), folder)
    assert_same(cached.pixels(-1), small().pixels(7))
    assert [path.name for path in folder.iterdir()] == ["7.batch"]


def test_source_images_are_those_of_the_stream(folder):
    stream = small()
    assert CachedStream(stream, folder).data is stream.data
    assert CachedStream(Counted(stream), folder).data is None


def test_who_finds_a_batch_under_way_makes_a_later_one(folder):
    (folder / "2.begun").touch()
    (folder / "3.begun").touch()
    counted = Counted(small())
    assert_same(CachedStream(counted, folder).pixels(2), small().pixels(2))
    assert counted.made == [4, 2]  # nobody came back with 2: their process may be gone
    assert {path.name for path in folder.iterdir()} == {"2.batch", "3.begun", "4.batch"}


def read_all(folder: str, marks: str) -> None:
    """Write the sums of all batches, once a line on standard input says that it is time."""
    cached = CachedStream(Counted(make("ccc-mini", steps=40, batch=8, seed=43), Path(marks)), folder)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(" ".join(str(cached.pixels(k).images.astype(np.int64).sum()) for k in range(40)))


@pytest.mark.slow
def test_processes_at_once_share_the_work(folder, tmp_path):
    marks = tmp_path / "marks"
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_cached_streams as t; t.read_all(*sys.argv[2:])"
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(folder), str(marks)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [process.communicate(timeout=60)[0].split() for process in processes]
    plain = make("ccc-mini", steps=40, batch=8, seed=43)
    assert found == [[str(plain.pixels(k).images.astype(np.int64).sum()) for k in range(40)]] * 2
    made = Counter(marks.read_text().split())
    assert len(made) == 40
    assert made.total() < 70  # without sharing: 80


@pytest.mark.parametrize("cut", [0, 10, 200, 5000])
def test_a_damaged_file_is_made_again(folder, cut):
    CachedStream(small(), folder).pixels(3)
    os.truncate(folder / "3.batch", cut)
    assert_same(CachedStream(small(), folder).pixels(3), small().pixels(3))
    counted = Counted(small())
    assert_same(CachedStream(counted, folder).pixels(3), small().pixels(3))
    assert counted.made == []


@contextlib.contextmanager
def tiny_disk():
    """Files of this process cannot grow beyond 1 kB: the system refuses, as it does when a disk is full."""
    import resource
    import signal

    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_when_the_disk_is_full_what_was_kept_is_given_back(folder):
    cached, other = CachedStream(small(), folder), CachedStream(small(), folder)
    cached.pixels(0)
    with tiny_disk():
        for k in range(1, 4):
            assert_same(cached.pixels(k), small().pixels(k))
            assert not folder.exists()
        assert_same(other.pixels(0), small().pixels(0))
    assert not folder.exists()


def test_a_stream_beyond_the_limit_is_not_kept_nor_made_twice(folder):
    counted = Counted(small())
    cached = CachedStream(counted, folder, limit=1000)
    (folder / "5.begun").touch()
    for k in range(8):
        assert_same(cached.pixels(k), small().pixels(k))
    assert counted.made == list(range(8))
    assert not list(folder.glob("*.batch"))


def test_equal_streams_are_told_from_others():
    def text(**fields):
        return assembly.stream_text(bench.Experiment(**{"stream": "ccc-mini", "method": "eta", **fields}))

    assert text(method="source") == text(reset="asr")
    assert len({text(), text(seed=1), text(steps=9), text(batch=9), text(stream="ccc-mini:level=hard")}) == 5
    assert text(stream="ccc-mini:seed=7", seed=1) == text(stream="ccc-mini:seed=7", seed=2)


def test_a_stream_with_batches_of_its_own_is_left_alone(folder):
    odd = bench.Experiment("test_cached_streams:doubled_stream", "source")
    assert assembly.stream_of(odd, folder)[0] == "its own"


def bits(outcomes: list[bench.Outcome]) -> dict[str, list[object]]:
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    runs = {o.experiment.key: o.folder for o in outcomes}
    return {key: [(path / name).read_bytes() for name in (STEPS, SPANS, SNAPSHOT)] for key, path in runs.items()}


def left_in(root: Path) -> list[str]:
    return [path.name for path in root.glob(".*") if path.name != ".lock"]


@pytest.mark.slow
def test_a_sweep_makes_each_stream_once_and_has_the_bits_of_single_runs(tmp_path, marks):
    grid = {**GRID, "stream": "test_cached_streams:counted_stream", "method": ["source", "batchnorm", "eta"]}
    swept = bits(bench.sweep(grid, tmp_path / "runs", jobs=1, threads=1))
    made = Counter(marks.read_text().split())
    assert made.pop("0") == 2  # the first is looked at before a run begins: do labels and answers fit?
    assert made == {str(k): 1 for k in range(1, 12)}
    assert left_in(tmp_path / "runs") == []
    for experiment in bench.experiments(grid):
        runner.run(experiment, tmp_path / "single" / experiment.key)
    assert swept == bits([bench.Outcome(e, tmp_path / "single" / e.key, None) for e in bench.experiments(grid)])


@pytest.mark.slow
def test_nothing_is_left_after_a_sweep_whose_runs_fail(tmp_path, marks):
    root = tmp_path / "runs"
    (root / ".batches-of-a-killed-sweep").mkdir(parents=True)
    grid = {**GRID, "stream": ["ccc-mini", "recurring:corruptions=[fog, fgo]"], "steps": 2}
    errors = [outcome.error for outcome in bench.sweep(grid, root, jobs=1, threads=1)]
    assert sum(error is not None for error in errors) == 2
    assert left_in(root) == []


def test_only_streams_that_several_runs_see_are_kept_and_only_as_long(tmp_path):
    grid = {**GRID, "grids": [{"seed": 43}, {"seed": 44, "method": "source"}]}
    jobs = [Job(e, tmp_path / e.key, tmp_path / ".stop", 1, 100) for e in bench.experiments(grid)]
    with sharing.sharing(jobs, tmp_path) as (first, second, alone):
        assert first.batches == second.batches
        assert alone.batches is None
        for job in (first, second):
            sharing.release([first, second, alone])
            assert first.batches.is_dir()
            job.folder.mkdir(parents=True)
            (job.folder / RESULT).touch()
        sharing.release([first, second, alone])
        assert not first.batches.exists()
