"""Sweeps: the same results on processes and on a cluster, whatever is lost on the way."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from processes import hear_ctrl_c
from tidefast import bench, cli, models
from tidefast.bench import assembly
from tidefast.bench.ledger import SEGMENTS, SPANS, STEPS
from tidefast.bench.results import ERROR, SNAPSHOT
from tidefast.commands import bar

GRID = {
    "stream": "drift",
    "method": ["source", "eta:similarity_margin=0.4"],
    "reset": "asr",
    "optimizer": "adam:lr=1e-3",
    "seed": [43, 44],
    "steps": 40,
    "batch": 8,
}


def counted_model():
    """A network whose making leaves a mark: the process, and the page faults of a block that was there before."""
    faults = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt for _ in range(3) if bytearray(40 * 2**20)]
    with open(os.environ["TIDEFAST_TEST_MARKS"], "a") as file:
        file.write(f"{os.getpid()} {faults[2] - faults[1]}\n")
    return models.load("bundled-resnet")


def deadly_model():
    """A network that takes its process with it, until it has done so twice."""
    marks = Path(os.environ["TIDEFAST_TEST_MARKS"])
    if marks.stat().st_size < 2:
        with open(marks, "a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    return models.load("bundled-resnet")


@pytest.fixture
def marks(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "marks"
    path.touch()
    monkeypatch.setenv("TIDEFAST_TEST_MARKS", str(path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # the workers import this file by its name
    from loky import get_reusable_executor

    get_reusable_executor().shutdown()  # workers of an earlier test have an earlier environment
    yield path
    get_reusable_executor().shutdown()


def bits(outcomes: list[bench.Outcome]) -> dict[str, list[bytes]]:
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    return {o.experiment.key: [(o.folder / name).read_bytes() for name in (STEPS, SPANS, SNAPSHOT)] for o in outcomes}


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[str, list[bytes]]:
    return bits(bench.sweep(GRID, tmp_path_factory.mktemp("local"), jobs=2, threads=1))


@pytest.mark.slow
def test_a_worker_makes_its_model_once_and_keeps_its_memory(tmp_path, marks):
    grid = {**GRID, "model": "test_sweep:counted_model", "steps": 2}
    bits(bench.sweep(grid, tmp_path / "runs", jobs=2, threads=1))
    makers, faults = zip(*(line.split() for line in marks.read_text().splitlines()), strict=True)
    assert 1 <= len(makers) <= 2
    assert len(set(makers)) == len(makers)
    assert max(map(int, faults)) < 100


@pytest.mark.slow
def test_a_lost_worker_is_replaced(tmp_path, marks):
    grid = {**GRID, "model": "test_sweep:deadly_model", "steps": 2}
    bits(bench.sweep(grid, tmp_path / "runs", jobs=1, threads=1, retries=3))
    assert marks.stat().st_size == 2


@pytest.mark.slow
def test_what_always_kills_its_worker_is_given_up(tmp_path, marks):
    grid = {**GRID, "model": "test_sweep:deadly_model", "steps": 2, "seed": 43, "method": "source"}
    outcomes = bench.sweep(grid, tmp_path / "runs", jobs=1, threads=1, retries=0)
    assert "lost" in outcomes[0].error


def test_one_bad_experiment_does_not_stop_the_others(tmp_path):
    grid = {**GRID, "stream": ["drift", "recurring:corruptions=[fog, fgo]"], "steps": 2, "seed": 43, "method": "source"}
    good, bad = bench.sweep(grid, tmp_path / "runs", jobs=1, threads=1)
    assert good.error is None
    assert "fgo" in bad.error
    assert "fgo" in (bad.folder / ERROR).read_text()


def test_the_watcher_sees_everything_finished(tmp_path):
    seen = []
    bench.sweep({**GRID, "steps": 2}, tmp_path / "runs", jobs=1, threads=1, watch=seen.append)
    assert [(p.seen, p.total, p.finished) for p in seen[-1]] == [(2, 2, True)] * 4


@pytest.mark.slow
def test_ctrl_c_loses_nothing(tmp_path):
    """A real process, interrupted in the middle of its runs: they stop at a batch, with its snapshot."""
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({**GRID, "steps": 400}))
    command = [sys.executable, "-m", "tidefast", "sweep", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "runs")]
    process = subprocess.Popen(
        [*command, "--jobs", "2", "--snapshot-every", "10"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    )
    while not any((tmp_path / "runs").rglob(f"{SEGMENTS}/steps-*")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().endswith("tidefast: interrupted")
    assert [path.name for path in (tmp_path / "runs").glob(".*")] == [".lock"]
    begun = [run for run in bench.find(tmp_path / "runs") if run.batches]
    assert begun
    for run in begun:
        adapter = assembly.adapter_of(
            run.experiment, assembly.model_of(run.experiment), assembly.stream_of(run.experiment)
        )
        adapter.load(run.folder / SNAPSHOT)
        assert adapter.step == run.batches
    assert any(run.batches % 10 for run in begun) or len(begun) == 1


@pytest.mark.slow
def test_sigterm_ends_the_workers_at_once_and_starts_nothing_more(tmp_path):
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({**GRID, "steps": 2000, "seed": list(range(6))}))
    command = [sys.executable, "-m", "tidefast", "sweep", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "runs")]
    process = subprocess.Popen([*command, "--jobs", "2", "--snapshot-every", "5"], stderr=subprocess.PIPE, text=True)
    while not any((tmp_path / "runs").rglob(f"{SEGMENTS}/steps-*")):
        assert process.poll() is None
        time.sleep(0.05)
    asked = time.monotonic()
    process.terminate()
    _, errors = process.communicate(timeout=60)  # which waits for the workers too: they hold the pipe
    assert time.monotonic() - asked < 20
    assert process.returncode == 128 + signal.SIGTERM
    assert errors.strip().endswith("tidefast: terminated; the same command goes on from the last snapshots")
    left = sorted((tmp_path / "runs").rglob("*"))
    assert [path.name for path in left if path.name.startswith(".batches")] == []
    assert len(list((tmp_path / "runs").rglob("experiment.json"))) <= 3
    time.sleep(2)
    assert sorted((tmp_path / "runs").rglob("*")) == left
    for run in bench.find(tmp_path / "runs"):
        assert run.batches % 5 == 0


def test_a_sweep_into_a_file_says_now_and_then_how_far_it_is(tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({**GRID, "steps": 2}))
    assert cli.main(["sweep", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "runs"), "--jobs", "1"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "4 of 4 runs finished; 8 of 8 batches"
    assert len(lines) <= 6


def test_a_long_run_into_a_file_says_now_and_then_how_far_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bar, "_PAUSE", 0.0)
    command = ["run", "--stream", "drift", "--method", "source", "--steps", "3", "--batch", "4"]
    assert cli.main([*command, "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(",")[0] for line in lines] == [f"Source: {k} of 3 batches" for k in (1, 2, 3)]


@pytest.mark.slow
def test_embedded_ray_gives_the_same_bits(tmp_path, expected):
    assert bits(bench.sweep(GRID, tmp_path / "runs", jobs=2, threads=1, backend="ray")) == expected


@pytest.mark.slow
def test_a_cluster_that_loses_a_node_gives_the_same_bits(tmp_path, expected):
    """Three nodes on one machine; one dies while it runs an experiment, which another takes up from its snapshot."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    root = tmp_path / "runs"
    killed = threading.Event()

    def kill_when_under_way() -> None:
        while not any(root.rglob(f"{SEGMENTS}/steps-*")):
            time.sleep(0.01)
        cluster.remove_node(nodes[0], allow_graceful=False)
        killed.set()

    try:
        assassin = threading.Thread(target=kill_when_under_way)
        assassin.start()
        outcomes = bench.sweep(
            GRID, root, threads=1, backend="ray", address=cluster.address, snapshot_every=2, retries=5
        )
        assassin.join()
        assert killed.is_set()
        assert bits(outcomes) == expected
    finally:
        ray.shutdown()
        cluster.shutdown()
