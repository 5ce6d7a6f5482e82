"""Snapshots: whole or not at all, belonging to one adapter, never half loaded."""

from __future__ import annotations

import functools
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tidefast
from tidefast import methods, resets
from tidefast.testing import small_network

ADAM = functools.partial(torch.optim.Adam, lr=1e-2)


def make(
    method: str | methods.Method = "roid", *, norm="batch", seed=0, classes=10, steps=0, reset="asr", **options
) -> tidefast.Adapter:
    torch.manual_seed(seed)
    adapter = tidefast.adapt(small_network(norm, classes), method, reset=reset, **{"optimizer": ADAM, **options})
    for step in range(steps):
        adapter(batch(step))
    return adapter


def batch(step: int) -> torch.Tensor:
    return torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(step))


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "state.safetensors"
    make(steps=3).save(path)
    return path.read_bytes()


def test_a_snapshot_is_plain_safetensors_with_json_metadata_and_no_pickle(saved, tmp_path):
    path = tmp_path / "state"
    path.write_bytes(saved)
    with safetensors.safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["tidefast"])
        names = set(file.keys())
    content = json.loads(header["content"])
    assert {"arena", "optimizer.state.exp_avg", "method.class_probabilities", "reset.theta_sum"} <= names
    assert content["belongs"]["method"]["name"] == "roid"
    assert content["belongs"]["reset"]["hyperparameters"]["alpha0"] == 0.5
    assert content["step"] == 3


def test_any_flipped_bit_is_noticed(saved, tmp_path):
    """Every bit of what comes first, and one of every byte of the rest."""
    for position in range(len(saved)):
        for bit in range(8) if position < 150 else [position % 8]:
            damaged = bytearray(saved)
            damaged[position] ^= 1 << bit
            refuses(bytes(damaged), tmp_path)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 10**6))
def test_any_truncation_is_noticed(saved, tmp_path_factory, length):
    refuses(saved[: length % len(saved)], tmp_path_factory.mktemp("cut"))


@functools.cache
def victim() -> tidefast.Adapter:
    return make(steps=1)


def refuses(content: bytes, folder: Path) -> None:
    path = folder / "damaged"
    path.write_bytes(content)
    before = victim().network.arena.values.clone()
    with pytest.raises(tidefast.SnapshotError) as caught:
        victim().load(path)
    assert "\n" not in str(caught.value)
    assert torch.equal(victim().network.arena.values, before)
    assert victim().step == 1


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, "another network"),
        ({"norm": "layer"}, "another network"),
        ({"method": "cmf"}, "saved with method 'roid', this adapter has 'cmf'"),
        (
            {"method": methods.ROID(temperature=0.5)},
            r"other settings of method 'roid': temperature=0\.33.* \(here 0.5\)",
        ),
        ({"reset": "rdumb"}, "saved with reset 'asr', this adapter has 'periodic'"),
        ({"reset": resets.ASR(alpha0=0.7)}, r"other settings of reset 'asr': alpha0=0.5 \(here 0.7\)"),
        ({"optimizer": functools.partial(torch.optim.SGD, lr=0.1)}, "optimizer 'Adam', this adapter has 'SGD'"),
        ({"window": 5}, "window 16, this adapter has 5"),
    ],
)
def test_a_snapshot_of_something_else_is_refused_by_name(saved, tmp_path, other, message):
    path = tmp_path / "state"
    path.write_bytes(saved)
    adapter = make(**other)
    with pytest.raises(tidefast.SnapshotError, match=message):
        adapter.load(path)
    assert torch.equal(adapter.network.arena.values, adapter.network.arena.source)


def test_another_number_of_classes_is_refused(saved, tmp_path):
    path = tmp_path / "state"
    path.write_bytes(saved)
    with pytest.raises(tidefast.SnapshotError, match="for 10 classes, this adapter for 7"):
        make(num_classes=7).load(path)


def rewritten(saved: bytes, path: Path, **header) -> Path:
    """The snapshot with other header entries, as another program (or a later version) might write it."""
    path.write_bytes(saved)
    with safetensors.safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
        old = json.loads(file.metadata()["tidefast"])
    safetensors.torch.save_file(tensors, path, metadata={"tidefast": json.dumps({**old, **header})})
    return path


def test_a_future_version_says_so(saved, tmp_path):
    with pytest.raises(tidefast.SnapshotError, match="format version 2; this tidefast reads up to 1: upgrade"):
        make().load(rewritten(saved, tmp_path / "future", version=2))


def test_a_snapshot_of_the_projects_former_name_is_refused_in_one_sentence(saved, tmp_path):
    path = rewritten(saved, tmp_path / "old")
    with safetensors.safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
        header = file.metadata()["tidefast"]
    safetensors.torch.save_file(tensors, path, metadata={"holdfast": header})
    with pytest.raises(tidefast.SnapshotError, match="was written by holdfast, as tidefast was called before"):
        make().load(path)


def test_other_files_are_refused(tmp_path):
    foreign = tmp_path / "foreign.safetensors"
    safetensors.torch.save_file({"arena": torch.zeros(3)}, foreign)
    with pytest.raises(tidefast.SnapshotError, match="not a tidefast snapshot"):
        make().load(foreign)
    tidefast.prepare(small_network(), "eata", torch.rand(8, 3, 16, 16)).save(tmp_path / "fisher")
    with pytest.raises(tidefast.SnapshotError, match="of kind 'preparation', expected 'adapter'"):
        make().load(tmp_path / "fisher")
    with pytest.raises(FileNotFoundError, match="no snapshot at"):
        make().load(tmp_path / "missing")


def test_loading_replaces_everything_also_what_the_file_does_not_hold(tmp_path):
    fresh, used = make(), make(steps=4)
    fresh.save(tmp_path / "fresh")
    used.load(tmp_path / "fresh")
    assert used.step == 0
    assert not used.optimizer.state
    assert torch.equal(used.network.arena.values, used.network.arena.source)
    assert torch.equal(used(batch(0)), fresh(batch(0)))


def test_the_learning_rate_in_the_file_wins_and_a_reset_brings_back_the_adapters_own(tmp_path):
    first, second = make(), make()
    first.optimizer.param_groups[0]["lr"] = 0.5
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    assert second.optimizer.param_groups[0]["lr"] == 0.5
    second.reset()
    assert second.optimizer.param_groups[0]["lr"] == 1e-2


def test_a_window_in_progress_is_part_of_the_snapshot(tmp_path):
    def run(adapter, images):
        return [adapter(image[None]) for image in images]

    whole, first, second = (make(window=4) for _ in range(3))
    expected = run(whole, batch(0))
    run(first, batch(0)[:6])
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    assert all(torch.equal(a, b) for a, b in zip(run(second, batch(0)[6:]), expected[6:], strict=True))
    assert torch.equal(second.network.arena.values, whole.network.arena.values)


def test_a_failed_save_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    adapter, path = make(steps=1), tmp_path / "state"
    adapter.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        adapter.save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_a_save_into_a_missing_folder_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        make().save(tmp_path / "missing" / "state")


def test_the_file_has_ordinary_permissions(tmp_path):
    path = tmp_path / "state"
    make().save(path)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


SAVER = textwrap.dedent(
    """
    import sys, torch, tidefast
    from tidefast.testing import small_network
    torch.set_num_threads(1)
    torch.manual_seed(0)
    adapter = tidefast.adapt(small_network(), "roid", reset="asr", optimizer=lambda p: torch.optim.Adam(p, lr=1e-2))
    step = 0
    while True:
        adapter(torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(step)))
        step += 1
        adapter.save(sys.argv[1])
        print(step, flush=True)
    """
)


@pytest.mark.slow
def test_kill_9_while_saving_always_leaves_a_whole_snapshot_that_continues_bit_for_bit(tmp_path):
    path = tmp_path / "state.safetensors"
    for pause in (0.0, 0.013, 0.031, 0.047):
        process = subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3):
            process.stdout.readline()
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        adapter = make()
        adapter.load(path)
        uninterrupted = make(steps=adapter.step + 2)
        for step in (adapter.step, adapter.step + 1):
            adapter(batch(step))
        assert torch.equal(adapter.network.arena.values, uninterrupted.network.arena.values)


# -- preparations ---------------------------------------------------------------------------------------------


def test_a_saved_fisher_serves_like_the_loader_it_came_from(tmp_path):
    loader = [(batch(100), torch.zeros(8)), (batch(101), torch.zeros(8))]
    torch.manual_seed(0)
    tidefast.prepare(small_network(), "eata", loader).save(tmp_path / "fisher")
    computed = make("eata", source=loader, steps=3)
    read = make("eata", source=tmp_path / "fisher", steps=3)
    assert torch.equal(computed.network.arena.values, read.network.arena.values)


def test_a_fisher_of_another_network_or_method_is_refused(tmp_path):
    torch.manual_seed(1)
    prepared = tidefast.prepare(small_network(), "eata", batch(0))
    prepared.save(tmp_path / "fisher")
    with pytest.raises(tidefast.SnapshotError, match="another network"):
        make("eata", source=tmp_path / "fisher")
    make().save(tmp_path / "adapter")
    with pytest.raises(tidefast.SnapshotError, match="of kind 'adapter', expected 'preparation'"):
        make("eata", source=tmp_path / "adapter")


def test_snapshots_are_tied_to_the_fisher_they_were_made_with(tmp_path):
    make("eata", source=batch(100)).save(tmp_path / "state")
    with pytest.raises(tidefast.SnapshotError, match="other source images"):
        make("eata", source=batch(101)).load(tmp_path / "state")
