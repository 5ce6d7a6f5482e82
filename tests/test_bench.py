"""Experiments: what they are, and that a run survives anything with the same bits."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import tidefast
from tidefast import bench, cli
from tidefast.bench import Experiment, ledger, text
from tidefast.bench.ledger import SEGMENTS, SPANS, STEPS
from tidefast.bench.results import EXPERIMENT, RESULT, SNAPSHOT
from tidefast.core.specification import Specification

SAME_BITS = (STEPS, SPANS, SNAPSHOT, EXPERIMENT)
"""The files of a finished run that depend on the experiment alone."""


def experiment(**changes) -> Experiment:
    fields = {"stream": "drift", "method": "eta:similarity_margin=0.4", "reset": "asr", "steps": 12, "batch": 8}
    return Experiment.of({**fields, "optimizer": "adam:lr=1e-3", "seed": 43, **changes})


def bits(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SAME_BITS}


# -- the configuration -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name", "options"),
    [
        ("eta", "eta", {}),
        ("asr:alpha0=0.3,target=anchor", "asr", {"alpha0": 0.3, "target": "anchor"}),
        ("adam:lr=1e-3", "adam", {"lr": 0.001}),
        ("recurring:corruptions=[fog, snow],visits=2", "recurring", {"corruptions": ["fog", "snow"], "visits": 2}),
        ("my.nets:build", "my.nets:build", {}),
        ("my.nets:build:width=3", "my.nets:build", {"width": 3}),
        ("asr:when=interval:every=512,extent=full", "asr", {"when": "interval:every=512", "extent": "full"}),
        ("asr:when={name: adaptive, delay: 1},r0=1", "asr", {"when": {"name": "adaptive", "delay": 1}, "r0": 1}),
        ("my.nets:build:part=other:way=2", "my.nets:build", {"part": "other:way=2"}),
        ({"name": "eta", "entropy_margin": 0.4}, "eta", {"entropy_margin": 0.4}),
    ],
)
def test_a_part_is_a_name_with_options(given, name, options):
    part = Specification.parse(given)
    assert (part.name, part.options) == (name, options)
    assert Specification.parse(part.as_plain()) == part


def test_yaml_reads_numbers_as_people_write_them():
    assert text.parse("{lr: 1e-3, steps: 3000, level: hard, on: [1E5, -2e-4]}")["lr"] == 0.001
    assert text.parse("[1E5, -2e-4, 1.5e3]") == [1e5, -2e-4, 1.5e3]


def test_an_experiment_survives_its_plain_form():
    one = experiment(method={"name": "eta", "similarity_margin": 0.4, "title": "ETA"}, batch=32)
    again = Experiment.of(json.loads(json.dumps(one.as_plain())))
    assert again == one
    assert again.key == one.key
    assert again.label == "ETA + ASR"


def test_keys_tell_experiments_apart_and_titles_do_not_matter():
    grid = bench.experiments({"stream": ["drift", "clean"], "method": ["eta", "tent"], "seed": [0, 1], "batch": [8, 9]})
    assert len({one.key for one in grid}) == 16
    plain, titled = experiment(), experiment(method={"name": "eta", "similarity_margin": 0.4, "title": "Mine"})
    assert plain == titled
    assert plain.key == titled.key


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"sede": 3}, "an experiment has no 'sede'"),
        ({"stream": None}, "an experiment needs a stream"),
        ({"method": {"entropy_margin": 0.4}}, "needs a name"),
        ({"method": "eta:margin=1"}, "method 'eta' has no option 'margin'; its options: entropy_margin"),
        ({"method": "eat"}, "unknown method 'eat'; did you mean"),
        ({"reset": "asr:preset=newest"}, "reset 'asr' has no preset 'newest'; it has: paper, reference"),
        ({"optimizer": "adma"}, "unknown optimizer 'adma'"),
        ({"optimizer": "adam:rate=1"}, "optimizer 'adam'"),
        ({"stream": "drift:speed=1"}, "stream 'drift' has no option 'speed'"),
        ({"stream": {"name": "drift", "order": "sideways"}}, "unknown order 'sideways'"),
        ({"model": "bundled-resnet:width=2"}, "model 'bundled-resnet' has no option 'width'; its options: none"),
    ],
)
def test_a_wrong_experiment_says_what_is_wrong(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        bench.run(experiment(**changes), tmp_path / "run")


def test_presets_and_label_orders_are_within_reach_of_a_file(tmp_path):
    one = experiment(
        reset="asr:preset=reference", stream={"name": "drift", "order": {"name": "slot-dirichlet", "gamma": 0.1}}
    )
    done = bench.run(one, tmp_path / "run")
    assert done.complete
    assert done.steps["labels"].max(1).mean() > 6  # eight images of a batch are not spread over ten classes


# -- one run ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "run"
    assert bench.run(experiment(), folder).complete
    return folder


def test_a_run_writes_down_what_the_adapter_did(finished):
    run = bench.load(finished)
    model = tidefast.models.load("bundled-resnet")
    adapter = tidefast.adapt(
        model,
        tidefast.methods.ETA(similarity_margin=0.4),
        reset="asr",
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        seed=43,
    )
    for k, batch in enumerate(tidefast.streams.make("drift", seed=43, steps=12, batch=8)):
        predicted = adapter(batch.images).argmax(1)
        assert run.steps["correct"][k] == int((predicted == batch.labels).sum())
        assert run.steps["predicted"][k].tolist() == torch.bincount(predicted, minlength=10).tolist()
        assert run.steps["concentration"][k] == adapter.last.concentration
        assert run.steps["reset_fraction"][k] == adapter.last.reset_fraction
    assert run.batches == run.total == 12
    assert run.spans["images"].sum() == run.steps["images"].sum() == 96
    assert run.spans["correct"].sum() == run.steps["correct"].sum()
    assert run.accuracy == run.steps["correct"].sum() / 96
    assert len(run.seconds) == 12
    assert {"tidefast", "torch", "python", "processor", "weights"} <= run.environment.keys()
    assert json.loads((finished / RESULT).read_text())["accuracy"] == pytest.approx(run.accuracy)


def test_results_are_plain_parquet(finished):
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(finished / STEPS)
    assert table.num_rows == 12
    assert {"step", "correct", "predicted", "reset_fraction"} <= set(table.column_names)
    assert not (finished / SEGMENTS).exists()


def test_a_run_of_before_the_other_measures_reads_as_if_they_were_unknown(finished, tmp_path):
    import pyarrow.parquet

    old = shutil.copytree(finished, tmp_path / "old")
    (old / ledger.DIGESTS).unlink()  # which runs of that time do not have
    pyarrow.parquet.write_table(
        pyarrow.parquet.read_table(old / STEPS).drop_columns(list(ledger.VARIANTS)), old / STEPS
    )
    steps, whole = bench.load(old).steps, bench.load(finished).steps
    for name in ledger.VARIANTS:
        assert np.isnan(steps[name]).all()
        assert np.isfinite(whole[name]).all()
    assert steps["concentration"].tolist() == whole["concentration"].tolist()


def test_concentration_is_there_for_methods_whose_policy_does_not_measure_it(tmp_path):
    run = bench.run(experiment(reset="never", steps=2), tmp_path / "run")
    assert np.isfinite(run.steps["concentration"]).all()
    assert np.isnan(run.steps["threshold"]).all()


def test_a_finished_run_is_not_run_again(finished):
    before = {path: path.stat().st_mtime_ns for path in finished.iterdir() if path.name not in (".lock", EXPERIMENT)}
    bench.run(experiment(), finished)
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_stopping_and_going_on_gives_the_same_bits(finished, tmp_path):
    for stop_after in (1, 5, 11):
        folder = tmp_path / str(stop_after)
        calls = iter(range(1, 100))
        run = bench.run(experiment(), folder, snapshot_every=4, should_stop=lambda: next(calls) == stop_after)  # noqa: B023
        assert (run.batches, run.complete) == (stop_after, False)
        assert bench.run(experiment(), folder, snapshot_every=5).complete
        assert bits(folder) == bits(finished)


@pytest.mark.parametrize("complete", [True, False])
def test_a_run_with_more_steps_goes_on_to_the_bits_of_one_that_had_them_from_the_first(complete, finished, tmp_path):
    calls = iter(range(1, 100))
    short = bench.run(experiment(steps=7), tmp_path, should_stop=lambda: not complete and next(calls) == 5)
    assert (short.complete, short.batches) == ((True, 7) if complete else (False, 5))
    seen: list[int] = []
    longer = bench.run(experiment(), tmp_path, progress=lambda step, total, accuracy: seen.append(step))
    assert seen == list(range(short.batches + 1, 13))
    assert (longer.complete, longer.total, longer.batches) == (True, 12, 12)
    assert bits(tmp_path) == bits(finished)
    assert json.loads((tmp_path / RESULT).read_text())["accuracy"] == pytest.approx(bench.load(finished).accuracy)
    with pytest.raises(tidefast.FolderError, match="steps 12 there, 7 asked"):
        bench.run(experiment(steps=7), tmp_path)


@pytest.mark.slow
def test_extending_a_run_may_be_killed_at_any_file(finished, tmp_path, monkeypatch):
    """Each time one more file gets deleted before the process dies; either length goes on from what is left."""
    short = tmp_path / "short"
    bench.run(experiment(steps=7), short)
    unlink = Path.unlink
    for survived in range(5):
        for steps in (7, 12):
            folder = shutil.copytree(short, tmp_path / f"{survived}-{steps}")
            left = iter([True] * survived)

            def dying(path, missing_ok=False, left=left):
                if not path.name.startswith(".") and not next(left, False):
                    raise KeyboardInterrupt
                unlink(path, missing_ok=missing_ok)

            with monkeypatch.context() as patch:
                patch.setattr(Path, "unlink", dying)
                with pytest.raises(KeyboardInterrupt):
                    bench.run(experiment(), folder)
            bench.load(folder).steps["step"]
            assert bench.run(experiment(steps=steps), folder).complete
            assert bits(folder) == bits(finished if steps == 12 else short)


def fading(seed: int, steps: int, batch: int) -> tidefast.streams.Stream:
    """Clean images for the first half of its length, fog after that."""
    clear, fog = tidefast.streams.Domain(), tidefast.streams.Domain(("fog", 3))
    schedule = tidefast.streams.hold(clear, steps * batch // 2) + tidefast.streams.hold(fog, steps * batch // 2)
    return tidefast.streams.Stream(None, schedule, seed=seed, batch=batch)


def test_a_run_on_a_stream_that_depends_on_its_length_is_not_extended(tmp_path):
    def asked(steps: int) -> Experiment:
        return experiment(stream=f"{__name__}:fading", method="source", reset="never", optimizer=None, steps=steps)

    bench.run(asked(4), tmp_path)
    before = bits(tmp_path)
    with pytest.raises(tidefast.FolderError, match="cannot be extended to 8: the stream"):
        bench.run(asked(8), tmp_path)
    assert bits(tmp_path) == before
    assert bench.load(tmp_path).complete


@pytest.mark.slow
def test_prefetching_changes_no_bit(finished, tmp_path):
    bench.run(experiment(), tmp_path / "run", prefetch=1)
    assert bits(tmp_path / "run") == bits(finished)


def test_another_experiment_is_kept_out_of_the_folder(finished, tmp_path):
    with pytest.raises(tidefast.FolderError, match="seed 43 there, 44 asked"):
        bench.run(experiment(seed=44), finished)
    (tmp_path / "thesis.txt").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(tidefast.FolderError, match="holds no run"):
            bench.run(experiment(), tmp_path, fresh=fresh)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("complete", [False, True])
def test_another_experiment_is_kept_out_of_a_run_that_has_lost_its_snapshot(complete, tmp_path):
    stops = iter([False, False, True])
    bench.run(experiment(steps=3 if complete else 4), tmp_path, should_stop=lambda: not complete and next(stops))
    (tmp_path / SNAPSHOT).unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(tidefast.FolderError, match="seed 43 there, 44 asked"):
        bench.run(experiment(steps=3, seed=44), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    longer = bench.run(experiment(steps=5), tmp_path)  # from the first batch on
    assert (longer.complete, longer.batches) == (True, 5)


def test_what_an_experiment_that_could_not_begin_noted_does_not_stay(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(tidefast.Adapter, "__call__", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bench.run(experiment(steps=2), tmp_path / "run")
    other = experiment(steps=2, model="bundled-vit")
    bench.run(other, tmp_path / "run")
    bench.run(other, tmp_path / "alone")
    weights = [json.loads((tmp_path / name / "environment.json").read_text())["weights"] for name in ("run", "alone")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("complete", [False, True])
def test_a_run_of_the_projects_former_name_is_refused_in_one_sentence(complete, finished, tmp_path):
    old = shutil.copytree(finished, tmp_path / "old")
    (old / ledger.DIGESTS).unlink()  # which runs of that time do not have
    environment = json.loads((old / "environment.json").read_text())
    (old / "environment.json").write_text(json.dumps({"holdfast": environment.pop("tidefast"), **environment}))
    if not complete:
        (old / "result.json").unlink()
    for use in (lambda: bench.run(experiment(), old), lambda: bench.load(old)):
        with pytest.raises(tidefast.FolderError, match="was written by holdfast, as tidefast was called before"):
            use()


def test_an_experiment_that_could_not_begin_can_be_corrected_in_place(tmp_path):
    with pytest.raises(ValueError, match="has no option 'spede'"):
        bench.run(experiment(stream="drift:spede=2"), tmp_path / "run")
    assert bench.run(experiment(steps=2), tmp_path / "run").complete


def test_fresh_starts_over_and_leaves_foreign_files(tmp_path):
    bench.run(experiment(steps=2), tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    run = bench.run(experiment(steps=3), tmp_path / "run", fresh=True)
    assert run.batches == 3
    assert (tmp_path / "run" / "notes.txt").exists()


def test_source_images_come_from_the_stream_itself_or_from_a_file(tmp_path):
    one = experiment(method="eata:similarity_margin=0.4", steps=2, source_images=64)
    assert bench.run(one, tmp_path / "own").complete
    images = torch.stack([torch.rand(3, 32, 32) for _ in range(8)])
    prepared = tidefast.prepare(
        tidefast.models.load("bundled-resnet"), tidefast.methods.EATA(similarity_margin=0.4), images
    )
    prepared.save(tmp_path / "fisher.safetensors")
    two = experiment(method="eata:similarity_margin=0.4", steps=2, source=str(tmp_path / "fisher.safetensors"))
    assert bench.run(two, tmp_path / "file").complete


def test_tensorboard_gets_the_scalars(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    bench.run(experiment(steps=3), tmp_path / "run", tensorboard=tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    assert [event.step for event in events.Scalars("accuracy")] == [1, 2, 3]


# -- kill -9 ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(finished, tmp_path):
    command = [sys.executable, "-m", "tidefast", "run", "--stream", "drift", "--method", "eta:similarity_margin=0.4"]
    command += ["--reset", "asr", "--optimizer", "adam:lr=1e-3", "--steps", "12", "--batch", "8", "--seed", "43"]
    command += ["--snapshot-every", "3", "--threads", "1", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    moments, killed = random.Random(0), 0
    for _ in range(3):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        segments = tmp_path / "run" / SEGMENTS
        seen = len(list(segments.glob("steps-*"))) if segments.exists() else 0
        while process.poll() is None and (len(list(segments.glob("*"))) if segments.exists() else 0) <= seen:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.01))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed >= 2  # a run on a fast machine may end first
    assert not (tmp_path / "run" / RESULT).exists()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert bits(tmp_path / "run") == bits(finished)


# -- the commands ----------------------------------------------------------------------------------------------------


def test_run_takes_a_file_and_changes_to_it(tmp_path, capsys):
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(experiment(steps=3).as_plain()))
    assert cli.main(["run", str(tmp_path / "one.yaml"), "--seed", "44", "--out", str(tmp_path / "run")]) == 0
    assert "ETA" in capsys.readouterr().out
    assert bench.load(tmp_path / "run").experiment == experiment(steps=3, seed=44)


def test_sweep_runs_a_grid_and_never_twice(tmp_path, capsys):
    grid = {"stream": "drift", "steps": 3, "batch": 8, "seed": [0, 1], "method": ["source", "tent"]}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    command = ["sweep", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "runs"), "--jobs", "1"]
    assert cli.main([*command, "--list"]) == 0
    assert capsys.readouterr().out.count("to do") == 4
    assert cli.main(command) == 0
    assert "4 of 4 runs are finished" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob(STEPS)}
    assert len(before) == 4
    assert cli.main(command) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert len(bench.find(tmp_path / "runs")) == 4
    grid["method"] = ["source", {"name": "tent", "title": "Plain entropy"}]
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    assert cli.main(command) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert {run.experiment.label for run in bench.find(tmp_path / "runs")} == {"Source", "Plain entropy"}
