"""The demonstration with real processes and real files: it can be killed, interrupted, continued and started over.

The workers import this module by name for the stream and the network below, which are small and made up.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from holdfast import showcase
from holdfast.errors import SnapshotError
from holdfast.showcase import journal, worker
from holdfast.showcase.folder import Folder
from holdfast.snapshot import digest_of

STEPS, BATCH = 24, 16
OPTIONS = {"steps": STEPS, "batch": BATCH, "stream": "test_showcase:make_stream", "model": "test_showcase:make_model"}
KEYS = ["source", "eta+asr"]


@dataclass(frozen=True)
class MadeUpBatch:
    images: torch.Tensor
    labels: torch.Tensor
    domain: str


class MadeUpStream:
    """Coloured noise whose colour is its class. PAUSE in the environment makes it slow enough to be interrupted."""

    classes = tuple("abcdefghij")

    def __init__(self, seed: int, steps: int, batch: int) -> None:
        self.seed, self.steps, self.batch = seed, steps, batch
        self.pause = float(os.environ.get("PAUSE", "0"))

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, k: int) -> MadeUpBatch:
        time.sleep(self.pause)
        generator = torch.Generator().manual_seed(1000 * self.seed + k)
        labels = torch.randint(10, (self.batch,), generator=generator)
        images = torch.rand(self.batch, 3, 8, 8, generator=generator) / 2
        images[torch.arange(self.batch), labels % 3] += 0.05 * labels[:, None, None]
        return MadeUpBatch(images.clamp(0, 1), labels, f"haze {k / self.steps:.2f}")


def make_stream(seed: int, steps: int, batch: int) -> MadeUpStream:
    return MadeUpStream(seed, steps, batch)


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).eval()


def run(out: Path, **changes) -> tuple[showcase.Outcome, str]:
    """The demonstration in this process (its workers are others), and what it printed."""
    console = Console(file=io.StringIO(), width=160)
    outcome = showcase.run(out, console=console, **{**OPTIONS, "keys": KEYS, **changes})
    assert isinstance(console.file, io.StringIO)
    return outcome, console.file.getvalue()


@contextlib.contextmanager
def running(out: Path, pause: float, **changes):
    """The demonstration as a process of its own, which is in a group of its own, as under a shell."""
    options = {**OPTIONS, "keys": KEYS, "out": str(out), **changes}
    code = f"from holdfast import showcase; print('interrupted:', showcase.run(**{options!r}).interrupted)"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])  # the workers find this module and our holdfast
    environment = {**os.environ, "PAUSE": str(pause), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while len(journal.read(path)) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{path} did not reach {count} lines"
        time.sleep(0.02)


def results(out: Path, key: str) -> list[dict]:
    """A contestant's lines, without the only thing that no two runs share."""
    lines = [json.loads(line) for line in (out / key / "steps.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, showcase.Outcome, str]:
    """A demonstration that nobody disturbed: the workers' part done in this process, then the command."""
    out = tmp_path_factory.mktemp("finished")
    settings, lineup = showcase.Settings(**OPTIONS), showcase.lineup(STEPS, keys=KEYS)
    Folder(out).claim(settings, digest_of(make_model().state_dict()), lineup, fresh=False)
    for contestant in lineup:
        complete(out, contestant)
    outcome, printed = run(out)
    return out, outcome, printed


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    out = tmp_path / "copy"
    shutil.copytree(finished[0], out)
    return out


def test_it_ends_with_a_table_and_a_page(finished):
    out, outcome, printed = finished
    assert not outcome.interrupted
    assert outcome.failures == {}
    assert "ETA + ASR" in printed
    assert "Best over the whole stream" in printed
    assert str(outcome.page) in printed.replace("\n", "")
    page = outcome.page.read_text(encoding="utf-8")
    assert "Partial results" not in page
    assert "haze 0.0" in page
    assert [track.batches for track in outcome.story.tracks] == [STEPS, STEPS]
    lines = journal.read(out / "eta+asr" / "steps.jsonl")
    assert [line.step for line in lines] == list(range(1, STEPS + 1))
    assert all(sum(line.predicted) == sum(line.labels) == line.count == BATCH for line in lines)
    assert all(line.concentration is not None for line in lines)


def test_the_numbers_are_those_of_the_adapter(finished):
    contestant = showcase.lineup(STEPS, keys=["eta+asr"])[0]
    adapter, stream = contestant.adapter(make_model(), 0), make_stream(0, STEPS, BATCH)
    for line in journal.read(finished[0] / "eta+asr" / "steps.jsonl"):
        batch = stream[line.step - 1]
        predicted = adapter(batch.images).argmax(1)
        assert line.correct == int((predicted == batch.labels).sum())
        assert line.concentration == adapter.last.concentration
        assert line.reset_fraction == adapter.last.reset_fraction


def test_kill_9_and_the_same_command_again_give_the_same_bits(finished, tmp_path):
    out = tmp_path / "killed"
    with running(out, pause=0.05, snapshot_every=5, keys=["eta+asr"]) as process:
        wait_for_lines(out / "eta+asr" / "steps.jsonl", 12, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert 12 <= len(journal.read(out / "eta+asr" / "steps.jsonl")) < STEPS
    assert (out / "eta+asr" / "snapshot.safetensors").is_file()
    assert not (out / "report.html").exists()
    outcome, _ = run(out)  # and one more contestant, in the same folder
    assert [track.batches for track in outcome.story.tracks] == [STEPS, STEPS]
    assert outcome.failures == {}
    for key in KEYS:
        assert results(out, key) == results(finished[0], key)
        ended = (out / key / "snapshot.safetensors").read_bytes()
        assert ended == (finished[0] / key / "snapshot.safetensors").read_bytes()


def test_ctrl_c_ends_cleanly_with_a_report_and_loses_nothing(finished, tmp_path):
    out = tmp_path / "interrupted"
    with running(out, pause=0.1, snapshot_every=1000, keys=["eta+asr"]) as process:
        wait_for_lines(out / "eta+asr" / "steps.jsonl", 6, process)
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does: to the whole group
        printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0, printed
    assert "interrupted: True" in printed
    assert "Traceback" not in printed
    assert "Interrupted" in printed
    reached = len(results(out, "eta+asr"))
    assert 6 <= reached < STEPS
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Partial results" in page
    assert f"ETA + ASR {reached} of {STEPS}" in page
    contestant = showcase.lineup(STEPS, keys=["eta+asr"])[0]
    adapter = contestant.adapter(make_model(), 0)
    adapter.load(out / "eta+asr" / "snapshot.safetensors")
    assert adapter.step == reached
    complete(out, contestant)
    assert results(out, "eta+asr") == results(finished[0], "eta+asr")


def test_a_worker_that_is_still_starting_is_not_hit_by_ctrl_c():
    code = """
import multiprocessing, os, signal, time
from holdfast.bench import interruption
process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0.2,))
with interruption.held_back():
    process.start()
os.kill(process.pid, signal.SIGINT)
process.join()
raise SystemExit(process.exitcode)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def complete(out: Path, contestant: showcase.Contestant, stop_after: int = 10**6, every: int = 7) -> None:
    """What a worker does, in this process."""
    heard: list[worker.Progress] = []
    settings = showcase.Settings(**OPTIONS)
    place = out / contestant.key
    place.mkdir(parents=True, exist_ok=True)
    worker.compete(settings, contestant, place, every, heard.append, lambda: len(heard) > stop_after)
    assert heard[-1].step == len(results(out, contestant.key))


@pytest.mark.parametrize("key", ["source", "tent", "eta+rdumb", "roid+asr", "sar", "cmf"])
def test_stopping_often_changes_no_bit(tmp_path, key):
    contestant = showcase.lineup(STEPS, keys=[key])[0]
    complete(tmp_path / "whole", contestant)
    for _ in range(3):
        complete(tmp_path / "parts", contestant, stop_after=5)
    complete(tmp_path / "parts", contestant)
    assert results(tmp_path / "parts", key) == results(tmp_path / "whole", key)


def test_what_follows_the_snapshot_is_done_again(copy, finished):
    contestant = showcase.lineup(STEPS, keys=["eta+asr"])[0]
    shutil.rmtree(copy / "eta+asr")
    complete(copy, contestant, stop_after=10)
    with open(copy / "eta+asr" / "steps.jsonl", "a") as file:
        file.write('{"step": 11, "domain": "cut off in the mid')
    complete(copy, contestant)
    assert results(copy, "eta+asr") == results(finished[0], "eta+asr")


def test_a_snapshot_ahead_of_its_journal_is_not_trusted(copy, finished):
    path = copy / "eta+asr" / "steps.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:9]))
    complete(copy, showcase.lineup(STEPS, keys=["eta+asr"])[0])
    assert results(copy, "eta+asr") == results(finished[0], "eta+asr")


def test_a_damaged_snapshot_is_refused_with_advice(copy):
    path = copy / "eta+asr" / "snapshot.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SnapshotError, match="--fresh"):
        complete(copy, showcase.lineup(STEPS, keys=["eta+asr"])[0])


def test_a_finished_run_is_not_done_again(copy):
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*/*") if path.suffix in (".jsonl", ".safetensors")}
    outcome, printed = run(copy)
    assert "done before" in printed
    assert not outcome.interrupted
    assert before
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed 0 there, 1 asked"),
        ({"batch": 8}, "batch 16 there, 8 asked"),
        ({"steps": 48}, "steps 24 there, 48 asked"),
    ],
)
def test_a_folder_of_other_settings_is_refused(copy, changes, message):
    before = sorted(copy.rglob("*"))
    with pytest.raises(showcase.FolderError, match=message) as refusal:
        run(copy, **changes)
    assert "--fresh" in str(refusal.value)
    assert sorted(copy.rglob("*")) == before


def test_a_folder_of_other_weights_or_hyperparameters_is_refused(copy):
    path = copy / "demo.json"
    path.write_text(path.read_text().replace('"weights": "', '"weights": "0'))
    with pytest.raises(showcase.FolderError, match="weights"):
        run(copy)
    path.write_text(path.read_text().replace('"weights": "0', '"weights": "'))
    path = copy / "eta+asr" / "contestant.json"
    path.write_text(path.read_text().replace("lambda_r=20.0", "lambda_r=19.0"))
    with pytest.raises(showcase.FolderError, match="reset"):
        run(copy)


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(showcase.FolderError, match="choose another folder"):
            run(tmp_path, fresh=fresh)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(showcase.FolderError, match="is a file"):
        run(tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_fresh_deletes_results_and_nothing_else(copy):
    (copy / "notes.txt").write_text("mine")
    folder, settings = Folder(copy), showcase.Settings(**{**OPTIONS, "seed": 5})
    lineup = showcase.lineup(STEPS, keys=["source"])
    folder.claim(settings, "weights", lineup, fresh=True)
    assert folder.settings() == settings
    left = sorted(path.name for path in copy.rglob("*"))
    assert left == [".lock", "contestant.json", "demo.json", "notes.txt", "source"]


def test_two_demonstrations_cannot_share_a_folder(copy):
    with Folder(copy).lock(), pytest.raises(showcase.FolderError, match="another process is running"):
        run(copy)


def test_a_failing_contestant_does_not_stop_the_others(copy):
    shutil.rmtree(copy / "source")
    path = copy / "eta+asr" / "snapshot.safetensors"
    path.write_bytes(b"nonsense")
    lines = (copy / "eta+asr" / "steps.jsonl").read_text().splitlines(keepends=True)
    (copy / "eta+asr" / "steps.jsonl").write_text("".join(lines[:9]))
    outcome, printed = run(copy)
    assert list(outcome.failures) == ["eta+asr"]
    assert "ETA + ASR failed:" in printed
    assert "SnapshotError" in (copy / "eta+asr" / "error.txt").read_text()
    assert [track.batches for track in outcome.story.tracks] == [STEPS, 9]
    assert f"ETA + ASR 9 of {STEPS}" in outcome.page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 7}, "--steps must be a whole number of at least 8"),
        ({"batch": 1}, "--batch must be a whole number of at least 2"),
        ({"workers": 0}, "--workers must be a whole number of at least 1"),
        ({"keys": ["tnet"]}, "contestants must be one of"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "new", **changes)
    assert not (tmp_path / "new").exists()


def test_the_settings_are_the_published_ones():
    by_key = {contestant.key: contestant for contestant in showcase.lineup(800, full=True)}
    assert [contestant.key for contestant in showcase.lineup(800)] == [
        *("source", "batchnorm", "tent", "eta", "eta+rdumb", "eta+asr", "roid+asr")
    ]
    eta, asr = by_key["eta+asr"].method, by_key["eta+asr"].reset
    assert (eta.entropy_margin, eta.similarity_margin) == (0.4, 0.4)
    assert (asr.alpha0, asr.mu0, asr.lambda0, asr.r0, asr.lambda_r) == (0.5, 0.15, 5.0, 0.5, 20.0)
    assert by_key["eta+rdumb"].reset.every == 200
    for contestant in by_key.values():
        optimizer = contestant.adapter(make_model(), 0).optimizer
        assert isinstance(optimizer, torch.optim.Adam)
        assert optimizer.param_groups[0]["lr"] == 1e-3
