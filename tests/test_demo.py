"""The demonstration with real processes and real files; what runs survive is tested with the benchmarks."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from processes import hear_ctrl_c
from tidefast import bench, demo
from tidefast.bench.ledger import SEGMENTS
from tidefast.bench.results import SNAPSHOT
from tidefast.core.files import LOCK, locked
from tidefast.errors import FolderError

STEPS, BATCH = 24, 8
KEYS = ["source", "eta+asr"]


def run(out: Path, **changes) -> tuple[demo.DemoOutcome, str]:
    """The demonstration in this process (its workers are others), and what it printed."""
    console = Console(file=io.StringIO(), width=160)
    options = {"steps": STEPS, "batch": BATCH, "keys": KEYS, **changes}
    outcome = demo.run(out, console=console, **options)
    assert isinstance(console.file, io.StringIO)
    return outcome, console.file.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, demo.DemoOutcome, str]:
    out = tmp_path_factory.mktemp("demo") / "out"
    return out, *run(out)


def test_it_ends_with_a_table_and_a_page(finished):
    _, outcome, printed = finished
    assert not outcome.interrupted
    assert outcome.failures == {}
    assert "ETA + ASR" in printed
    assert "Best over the whole stream" in printed
    assert str(outcome.page) in printed.replace("\n", "")
    page = outcome.page.read_text(encoding="utf-8")
    assert "Partial results" not in page
    assert page.count("<figcaption>") == 18  # sample images
    source, asr = outcome.content.histories
    assert source.batches == asr.batches == STEPS
    assert asr.predicted.sum() == asr.labels.sum() == STEPS * BATCH
    assert len(outcome.content.classes) == 10
    assert (asr.concentration == asr.concentration).all()
    assert (source.concentration != source.concentration).all()


def test_a_finished_run_is_not_done_again_and_other_settings_stand_beside_it(finished):
    out = finished[0]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    _, printed = run(out)
    assert "done before" in printed
    outcome, _ = run(out, seed=1, keys=["source"])
    assert outcome.content.histories[0].batches == STEPS
    assert before
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_fresh_does_it_again_and_deletes_nothing_else(finished, tmp_path):
    out = tmp_path / "out"
    run(out, steps=8, keys=["source"])
    (out / "notes.txt").write_text("mine")
    steps = next(out.rglob("steps.parquet"))
    before = steps.stat().st_mtime_ns
    run(out, steps=8, keys=["source"], fresh=True)
    assert steps.stat().st_mtime_ns > before
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_with_a_report_and_loses_nothing(tmp_path):
    out = tmp_path / "interrupted"
    command = [sys.executable, "-m", "tidefast", "demo", "--steps", "2000", "--batch", "8", "--out", str(out)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    )
    while not any(out.rglob(f"{SEGMENTS}/steps-*")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does: to the whole group
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert "Interrupted" in printed
    begun = [run for run in bench.find(out) if run.batches]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Partial results" in page
    for run in begun:
        adapter = bench.adapter_of(run.experiment, bench.model_of(run.experiment), bench.stream_of(run.experiment))
        adapter.load(run.folder / SNAPSHOT)
        assert adapter.step == run.batches
        assert f" {run.batches:,} of 2,000" in page


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(FolderError, match="choose another folder"):
            run(tmp_path, fresh=fresh)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(FolderError, match="is a file"):
        run(tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_two_demonstrations_cannot_share_a_folder(finished):
    with locked(finished[0] / LOCK), pytest.raises(FolderError, match="another process is running"):
        run(finished[0])


def test_a_failing_contestant_does_not_stop_the_others(tmp_path):
    out = tmp_path / "out"
    demonstration = demo.Demonstration(out, STEPS, BATCH)
    (broken,) = demo.pick_contestants(STEPS, keys=["eta+asr"])
    experiment = demonstration.experiment(broken)
    seen = iter(range(1, 100))
    bench.run(experiment, out / experiment.key, should_stop=lambda: next(seen) == 9)
    (out / experiment.key / SNAPSHOT).write_bytes(b"nonsense")
    (out / LOCK).touch()
    outcome, printed = run(out)
    assert list(outcome.failures) == ["eta+asr"]
    assert "ETA + ASR failed:" in printed
    assert "--fresh" in printed
    assert "SnapshotError" in (out / experiment.key / "error.txt").read_text()
    assert [history.batches for history in outcome.content.histories] == [STEPS, 9]
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
    by_key = {contestant.key: contestant for contestant in demo.pick_contestants(800, full=True)}
    experiments = {
        key: demo.Demonstration(Path("out"), steps=800).experiment(contestant) for key, contestant in by_key.items()
    }
    one = experiments["eta+asr"]
    adapter = bench.adapter_of(one, bench.model_of(one), bench.stream_of(one))
    assert (adapter.method.entropy_margin, adapter.method.similarity_margin) == (0.4, 0.4)
    asr = adapter.policy
    assert (asr.alpha0, asr.mu0, asr.lambda0, asr.r0, asr.lambda_r) == (0.5, 0.15, 5.0, 0.5, 20.0)
    assert by_key["eta+rdumb"].reset.options == {"every": 200}
    assert by_key["eta+rdumb-matched"].reset.options == {"every": 39}  # as often as ASR
    for key, experiment in experiments.items():
        assert experiment.optimizer.name == "adam"
        assert experiment.optimizer.options == {"lr": 3e-2 if key.startswith("tent-fast") else 1e-3}
