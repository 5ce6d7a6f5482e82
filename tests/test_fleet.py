"""Many streams over one model: each as if it were alone, whatever the others, the threads and the disk do."""

from __future__ import annotations

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import tidefast
from tidefast.core import snapshot
from tidefast.fleet import fleet as fleets
from tidefast.fleet import manifest
from tidefast.testing import check_adapter, small_network

AWKWARD = ["../../etc/passwd", "a/b", "..", ".", "~", "C:\\x", "ключ 鍵 🔑", "x" * 200, "%2e%2e%2f", "-rf", "a b"]


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return small_network()


def images(seed: int, count: int = 8) -> torch.Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def lone(model: nn.Module, stream: int, steps: int, **options) -> tuple[tidefast.Adapter, list[torch.Tensor]]:
    adapter = tidefast.adapt(model, "eta", reset="asr", **options)
    return adapter, [adapter(images(1000 * stream + step)) for step in range(steps)]


def bytes_of(adapter, path) -> bytes:
    adapter.save(path, durable=False)
    return path.read_bytes()


@pytest.fixture
def model():
    return net()


@pytest.fixture
def fleet(model):
    return tidefast.Fleet(model, "eta", reset="asr", workers=2)


@pytest.mark.parametrize("resident", [64, 3])
def test_streams_from_many_threads_equal_lone_adapters(model, tmp_path, resident):
    fleet = tidefast.Fleet(model, "eta", reset="asr", workers=3, resident=resident)
    answers: dict[int, list[torch.Tensor]] = {stream: [] for stream in range(8)}

    def take(stream: int) -> None:
        for step in range(12):
            answers[stream].append(fleet[f"s{stream}"](images(1000 * stream + step)))
            fleet[f"s{stream}"].predict(images(step))  # must change nothing

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, answers))
    for stream, given in answers.items():
        adapter, expected = lone(model, stream, 12)
        assert all(torch.equal(a, b) for a, b in zip(given, expected, strict=True))
        assert bytes_of(fleet[f"s{stream}"], tmp_path / "a") == bytes_of(adapter, tmp_path / "b")
    in_memory = [name for name in fleet if fleet.status(name)["where"] == "memory"]
    assert len(in_memory) <= resident


def test_calls_of_one_stream_from_many_threads_take_turns(fleet):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: fleet["one"](images(i)), range(40)))
    assert fleet["one"].step == 40
    assert fleet["one"].last.step == 40


@pytest.mark.parametrize("method", ["eta", "roid", "cmf", "cotta"])
def test_a_stream_comes_back_from_disk_bit_for_bit(model, tmp_path, method):
    fleet = tidefast.Fleet(model, method, reset="asr", resident=1, seed=7)
    adapter = tidefast.adapt(model, method, reset="asr", seed=7)
    for step in range(6):
        assert torch.equal(fleet["a"](images(step)), adapter(images(step)))
        fleet["b"](images(step + 100))
        assert fleet.status("a")["where"] == "disk"
        assert fleet.status("a")["last"]["step"] == fleet["a"].step == step + 1
    assert bytes_of(fleet["a"], tmp_path / "a") == bytes_of(adapter, tmp_path / "b")


def test_single_images_wait_in_their_own_window(model):
    fleet = tidefast.Fleet(model, "eta", reset="asr", resident=1, window=4)
    adapters = {name: tidefast.adapt(model, "eta", reset="asr", window=4) for name in "ab"}
    for i in range(12):
        for shift, (name, adapter) in enumerate(adapters.items()):
            one = images(50 * shift + i, 1)
            assert torch.equal(fleet[name](one), adapter(one))


def test_the_fleet_keeps_the_promises_of_an_adapter():
    checks = [  # the others look into the network, and a stream has none of its own
        "answers every batch",
        "predict changes nothing",
        "resumes bit for bit",
        "a damaged snapshot changes nothing",
        "ragged and single batches work",
    ]
    assert check_adapter(lambda model: tidefast.Fleet(model, "eta", reset="asr")["x"], checks=checks) == checks


def test_predicting_begins_no_stream_and_refused_images_begin_none(fleet):
    fleet["never"].predict(images(0))
    with pytest.raises(ValueError, match="dimensions"):
        fleet["refused"](torch.rand(8, 3, 16))
    with pytest.raises(TypeError, match="floats"):
        fleet["refused"](torch.zeros(8, 3, 16, 16, dtype=torch.uint8))
    assert list(fleet) == []
    fleet["begun"](images(0))
    with pytest.raises(ValueError, match="dimensions"):
        fleet["begun"](torch.rand(8, 3, 16))
    assert (list(fleet), fleet["begun"].step) == (["begun"], 1)


def test_a_stream_that_begins_without_images_is_new(fleet, tmp_path):
    fleet.begin("early")
    fleet.begin("early")
    assert fleet.status("early") == {"name": "early", "step": 0, "frozen": False, "where": "new", "last": None}
    assert fleet.snapshot(tmp_path / "snap") == 1
    other = tidefast.Fleet(net(), "eta", reset="asr")
    assert other.restore(tmp_path / "snap") == ["early"]
    assert torch.equal(other["early"](images(1)), lone(net(), 0, 0)[0](images(1)))


ACTS = {
    "freeze": lambda fleet: fleet.freeze("x"),
    "reset": lambda fleet: fleet["x"].reset(),
    "feedback": lambda fleet: fleet["x"].feedback(images(0), [0] * len(images(0))),
    "drop": lambda fleet: fleet.drop("x"),
}


@pytest.mark.parametrize("act", ACTS)
def test_what_changes_a_stream_needs_one_that_has_begun(act):
    fleet = tidefast.Fleet(net(), "eta", reset="guard:alpha=0.05", source=images(1))
    with pytest.raises(KeyError, match=r"no stream 'x': it begins with its first images, or with Fleet\.begin"):
        ACTS[act](fleet)
    assert "x" not in fleet
    fleet.begin("x")
    ACTS[act](fleet)
    assert ("x" in fleet) is (act != "drop")


def test_a_stream_may_be_frozen_before_its_first_images(fleet, model):
    fleet.begin("x")
    fleet.freeze("x")
    assert torch.equal(fleet["x"](images(0)), tidefast.adapt(model, "eta", reset="asr").predict(images(0)))
    assert fleet["x"].step == 0


# -- freezing, dropping, resetting ------------------------------------------------------------------------------


def test_a_frozen_stream_answers_and_does_not_change(fleet, tmp_path):
    fleet["x"](images(0))
    fleet.freeze("x")
    before = bytes_of(fleet["x"], tmp_path / "a")
    expected = fleet["x"].predict(images(1))
    taken = fleet.take("x", images(1))
    assert torch.equal(taken.logits, expected)
    assert (taken.step, taken.record, taken.frozen) == (1, None, True)
    assert bytes_of(fleet["x"], tmp_path / "b") == before
    fleet.freeze("x", False)
    assert fleet.take("x", images(1)).record.step == 2


def test_no_step_begins_after_freeze_has_returned(monkeypatch):
    fleet = tidefast.Fleet(_Slow(), "eta", workers=2)
    fleet["x"](images(0))
    monkeypatch.setattr(_Slow, "seconds", 0.01)
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            fleet["x"](images(0))

    with ThreadPoolExecutor(5) as pool:
        asking = [pool.submit(ask) for _ in range(5)]  # one is under way, the others wait for their turn
        for _ in range(5):
            fleet.freeze("x")
            frozen_at = fleet["x"].step
            time.sleep(0.05)
            assert fleet["x"].step == frozen_at
            fleet.freeze("x", False)
            time.sleep(0.03)
        stop.set()
        for each in asking:
            each.result()
    assert fleet["x"].step > frozen_at


def test_calls_that_wait_while_their_stream_is_dropped_begin_it_anew(monkeypatch):
    """Every answer comes from a stream that has seen what was given since the last drop, and nothing else."""
    model = _Slow()
    fleet = tidefast.Fleet(model, "eta", workers=2, resident=1)
    monkeypatch.setattr(_Slow, "seconds", 0.01)
    fresh = tidefast.adapt(model, "eta")
    expected = []  # every call has the same images, so the k-th step after a drop has the k-th of these answers
    for _ in range(40):
        expected.append(fresh(images(0)))
    stop, answers = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            answers.append(fleet.take("x", images(0)))
            fleet["y"].predict(images(0))

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        for _ in range(6):
            time.sleep(0.04)
            if "x" in fleet:
                fleet.drop("x")
        time.sleep(0.04)
        stop.set()
        for each in asking:
            each.result()
    assert len(answers) > 8
    assert sum(taken.step == 1 for taken in answers) >= 3
    for taken in answers:
        assert torch.equal(taken.logits, expected[taken.step - 1])
    with pytest.raises(KeyError, match="no stream 'z'"):
        fleet.drop("z")


def test_a_dropped_stream_leaves_no_file_and_begins_as_the_source(model, tmp_path):
    fleet = tidefast.Fleet(model, "eta", reset="asr", resident=1, folder=tmp_path / "idle")
    first = fleet["x"](images(0))
    fleet["y"](images(0))
    assert len(list((tmp_path / "idle").rglob("*.safetensors"))) == 1
    fleet.drop("x")
    assert list((tmp_path / "idle").rglob("*.safetensors")) == []
    assert torch.equal(fleet["x"](images(0)), first)
    assert fleet["x"].step == 1


def test_two_fleets_share_a_folder_without_mixing(model, tmp_path):
    one, two = (tidefast.Fleet(model, "eta", resident=1, folder=tmp_path, seed=seed) for seed in (0, 1))
    for step in range(3):
        for shift, each in enumerate((one, two)):
            each["x"](images(10 * shift + step))
            each["y"](images(20 + 10 * shift + step))
    adapter = tidefast.adapt(model, "eta", seed=1)
    for step in range(3):
        adapter(images(10 + step))
    assert torch.equal(two["x"].predict(images(5)), adapter.predict(images(5)))


def test_reset_is_the_source_again(fleet, tmp_path):
    for i in range(3):
        fleet["x"](images(i))
    fleet["x"].reset()
    fresh = tidefast.adapt(net(), "eta", reset="asr")
    assert bytes_of(fleet["x"], tmp_path / "a") == bytes_of(fresh, tmp_path / "b")


def test_the_model_of_a_stream_is_a_copy(fleet):
    fleet["x"](images(0))
    model = fleet["x"].model
    before = model(images(9))
    fleet["x"](images(1))
    assert torch.equal(model(images(9)), before)
    assert fleet["x"].num_classes == 10


def test_the_callback_may_use_the_fleet(model, tmp_path):
    seen: list[tuple[str, int]] = []

    def callback(name: str, record: tidefast.StepRecord) -> None:
        seen.append((name, record.step))
        if record.step == 3:
            fleet.freeze(name)
            fleet.snapshot(tmp_path / f"at-{name}")
            fleet[name].predict(images(0))

    fleet = tidefast.Fleet(model, "eta", workers=1, callback=callback)
    for i in range(5):
        fleet["x"](images(i))
    assert seen == [("x", 1), ("x", 2), ("x", 3)]


# -- snapshots --------------------------------------------------------------------------------------------------


def test_a_snapshot_under_load_is_one_moment_for_all_streams(model, tmp_path):
    """One thread steps the streams in turn: at any moment, their counts differ by at most one and never increase."""
    fleet = tidefast.Fleet(model, "eta", reset="asr", workers=2, resident=4)
    names = [f"s{i}" for i in range(6)]
    stop = threading.Event()

    def rounds(prefix: str) -> None:
        step = 0
        while not stop.is_set():
            for i, name in enumerate(names):
                fleet[prefix + name](images(1000 * i + step))
            step += 1

    threads = [threading.Thread(target=rounds, args=(prefix,)) for prefix in ("a-", "b-")]
    for thread in threads:
        thread.start()
    try:
        for i in range(6):
            time.sleep(0.1)
            fleet.snapshot(tmp_path / str(i))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for i in range(6):
        listed = manifest.read_manifest(tmp_path / str(i))
        again = tidefast.Fleet(model, "eta", reset="asr", workers=2, resident=4)
        again.restore(tmp_path / str(i))
        for prefix in ("a-", "b-"):
            steps = [listed.get(prefix + name, {"step": 0})["step"] for name in names]
            assert steps == sorted(steps, reverse=True)
            assert steps[0] - steps[-1] <= 1
        for k, name in enumerate(names[:2]):  # and what is in the files is that very step
            if "a-" + name in again:
                adapter, _ = lone(model, k, again["a-" + name].step)
                assert bytes_of(again["a-" + name], tmp_path / "a") == bytes_of(adapter, tmp_path / "b")
    assert listed["a-s0"]["step"] > 0


def test_steps_go_on_while_a_snapshot_is_written(model, tmp_path, monkeypatch):
    fleet = tidefast.Fleet(model, "eta", reset="asr", workers=1)
    fleet["x"](images(0))
    expected = bytes_of(fleet["x"], tmp_path / "expected")
    writing, go_on = threading.Event(), threading.Event()
    write = snapshot.write

    def slow(*arguments, **options):
        writing.set()
        assert go_on.wait(20)
        write(*arguments, **options)

    monkeypatch.setattr(snapshot, "write", slow)
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(fleet.snapshot, tmp_path / "snap")
        assert writing.wait(20)
        for i in range(3):
            fleet["x"](images(i + 1))
        go_on.set()
        assert taking.result() == 1
    assert next((tmp_path / "snap").glob("*.safetensors")).read_bytes() == expected
    adapter = tidefast.adapt(model, "eta", reset="asr")
    for i in range(4):
        adapter(images(i))
    assert bytes_of(fleet["x"], tmp_path / "a") == bytes_of(adapter, tmp_path / "b")


def test_restore_replaces_everything_and_goes_on_bit_for_bit(model, tmp_path):
    fleet = tidefast.Fleet(model, "eta", reset="asr", resident=2)
    for i in range(5):
        fleet[f"s{i}"](images(i))
    fleet.freeze("s0")
    fleet.snapshot(tmp_path / "snap")
    after = {name: fleet[name](images(77)) for name in fleet}
    later = tidefast.Fleet(model, "eta", reset="asr", resident=2)
    later["gone"](images(0))
    assert later.restore(tmp_path / "snap") == [f"s{i}" for i in range(5)]
    assert later.is_frozen("s0")
    assert {later.status(name)["where"] for name in later} == {"disk"}
    assert all(torch.equal(later[name](images(77)), answer) for name, answer in after.items())
    assert fleet.restore(tmp_path / "snap")
    assert all(torch.equal(fleet[name](images(77)), answer) for name, answer in after.items())


def test_an_unchanged_stream_is_linked_and_a_changed_one_written(fleet, tmp_path):
    fleet["still"](images(0))
    fleet["busy"](images(0))
    fleet.snapshot(tmp_path / "1")
    fleet["busy"](images(1))
    fleet["still"].predict(images(1))
    fleet.snapshot(tmp_path / "2")
    inodes = {n: [(tmp_path / s / manifest.file_name(n)).stat().st_ino for s in "12"] for n in ("still", "busy")}
    assert inodes["still"][0] == inodes["still"][1]
    assert inodes["busy"][0] != inodes["busy"][1]


def test_a_stream_that_began_anew_is_not_taken_for_the_one_before(fleet, tmp_path):
    fleet["x"](images(0))
    fleet.snapshot(tmp_path / "1")
    fleet.drop("x")
    fleet["x"](images(1))
    fleet.snapshot(tmp_path / "2")
    paths = [tmp_path / s / manifest.file_name("x") for s in "12"]
    assert paths[0].read_bytes() != paths[1].read_bytes()


def test_rollback_takes_one_stream_back(fleet, tmp_path):
    fleet["x"](images(0))
    fleet["y"](images(0))
    fleet.snapshot(tmp_path / "snap")
    expected = fleet["x"](images(1))
    fleet["y"](images(1))
    fleet.freeze("x")
    fleet.rollback("x", tmp_path / "snap")
    assert (fleet["x"].step, fleet["y"].step, fleet.is_frozen("x")) == (1, 2, True)
    fleet.freeze("x", False)
    assert torch.equal(fleet["x"](images(1)), expected)
    with pytest.raises(KeyError, match="has no stream 'z'"):
        fleet.rollback("z", tmp_path / "snap")
    with pytest.raises(tidefast.SnapshotError, match="no snapshot"):
        fleet.rollback("x", tmp_path / "none")


def test_a_damaged_stream_goes_on_from_an_older_snapshot_and_harms_no_other(model, tmp_path):
    fleet = tidefast.Fleet(model, "eta", reset="asr")
    for name in ("x", "y"):
        fleet[name](images(0))
    fleet.snapshot(tmp_path / "1")
    for name in ("x", "y", "new"):
        fleet[name](images(1))
    fleet.snapshot(tmp_path / "2")
    for name in ("x", "new"):
        path = tmp_path / "2" / manifest.file_name(name)
        content = bytearray(path.read_bytes())
        content[-3] ^= 4
        path.write_bytes(content)
    with pytest.raises(tidefast.SnapshotError, match=r"stream '(x|new)'.*damaged"):
        fleet.restore(tmp_path / "2")
    assert fleet["x"].step == 2  # nothing has changed
    damaged: list[str] = []
    again = tidefast.Fleet(model, "eta", reset="asr")
    again.restore(tmp_path / "2", tmp_path / "1", on_damage=lambda name, problem: damaged.append(name))
    assert sorted(damaged) == ["new", "x"]
    assert {name: again[name].step for name in again} == {"new": 0, "x": 1, "y": 2}
    adapter = tidefast.adapt(model, "eta", reset="asr")
    adapter(images(0))
    assert torch.equal(again["x"](images(5)), adapter(images(5)))
    (tmp_path / "2" / manifest.file_name("y")).unlink()
    damaged.clear()
    again.restore(tmp_path / "2", tmp_path / "1", on_damage=lambda name, problem: damaged.append(name))
    assert "y" in damaged
    assert again["y"].step == 1


def test_a_snapshot_of_another_method_is_refused_even_where_damage_is_not(model, tmp_path):
    fleet = tidefast.Fleet(model, "eta", reset="asr")
    fleet["x"](images(0))
    fleet.snapshot(tmp_path / "snap")
    other = tidefast.Fleet(model, "roid", reset="asr")
    with pytest.raises(tidefast.SnapshotError, match="saved with method 'eta'"):
        other.restore(tmp_path / "snap", on_damage=lambda name, problem: None)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"",
        lambda text: text[:-10],
        lambda text: text.replace(b'"step": 1', b'"step": 9'),
        lambda text: text.replace(b'"x"', b'"z"'),
        lambda text: b"[" * 100_000,
        lambda text: b"\xff" + text,
        lambda text: json.dumps({**json.loads(text), "version": 99}).encode(),
        lambda text: json.dumps([json.loads(text)]).encode(),
    ],
)
def test_a_damaged_list_of_streams_is_noticed(fleet, tmp_path, change):
    fleet["x"](images(0))
    fleet.snapshot(tmp_path / "snap")
    path = tmp_path / "snap" / manifest.MANIFEST
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(tidefast.SnapshotError):
        fleet.restore(tmp_path / "snap")
    assert list(fleet) == ["x"]


def test_a_list_of_streams_cannot_name_a_file_elsewhere(fleet, tmp_path):
    fleet["x"](images(0))
    fleet.snapshot(tmp_path / "snap")
    streams = {"x": {"file": "../../etc/passwd", "step": 1, "frozen": False}}
    manifest.write_manifest(tmp_path / "snap", streams)
    with pytest.raises(tidefast.SnapshotError, match="passwd"):
        fleet.restore(tmp_path / "snap")


def test_a_failing_disk_leaves_no_half_snapshot(fleet, tmp_path, monkeypatch):
    fleet["x"](images(0))
    monkeypatch.setattr("tidefast.core.snapshot.write_atomically", _no_space)
    with pytest.raises(OSError, match="No space"):
        fleet.snapshot(tmp_path / "snap")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert fleet.snapshot(tmp_path / "snap") == 1
    with pytest.raises(tidefast.FolderError, match="already"):
        fleet.snapshot(tmp_path / "snap")


def test_a_full_disk_keeps_streams_in_memory_and_says_so_once(model, monkeypatch, caplog):
    fleet = tidefast.Fleet(model, "eta", reset="asr", resident=2)
    monkeypatch.setattr("tidefast.core.snapshot.write_atomically", _no_space)
    for step in range(3):
        for stream in range(5):
            fleet[f"s{stream}"](images(1000 * stream + step))
    assert {fleet.status(name)["where"] for name in fleet} == {"memory"}
    assert len([r for r in caplog.records if "stay in memory" in r.message]) == 1
    monkeypatch.undo()
    monkeypatch.setattr(fleets, "_PATIENCE", 0.0)
    for stream in range(5):
        assert torch.equal(fleet[f"s{stream}"](images(1000 * stream + 3)), lone(model, stream, 4)[1][3])
    assert sum(fleet.status(name)["where"] == "memory" for name in fleet) == 2


def test_a_stream_damaged_on_disk_raises_and_harms_no_other(model, tmp_path):
    fleet = tidefast.Fleet(model, "eta", resident=1, folder=tmp_path)
    fleet["x"](images(0))
    fleet["y"](images(0))
    next(tmp_path.rglob("*.safetensors")).write_bytes(b"rubbish")
    for _ in range(2):
        with pytest.raises(tidefast.SnapshotError):
            fleet["x"](images(1))
    assert fleet["y"](images(1)).shape == (8, 10)
    fleet["x"].reset()
    assert torch.equal(fleet["x"](images(0)), tidefast.adapt(model, "eta")(images(0)))


def test_a_rollback_that_fails_leaves_the_stream_as_it_was(fleet, tmp_path):
    fleet["x"](images(0))
    fleet.snapshot(tmp_path / "snap")
    (tmp_path / "snap" / manifest.file_name("x")).write_bytes(b"rubbish")
    fleet["x"](images(1))
    before = bytes_of(fleet["x"], tmp_path / "a")
    with pytest.raises(tidefast.SnapshotError):
        fleet.rollback("x", tmp_path / "snap")
    assert bytes_of(fleet["x"], tmp_path / "a") == before
    fleet.drop("x")
    with pytest.raises(tidefast.SnapshotError):
        fleet.rollback("x", tmp_path / "snap")
    assert "x" not in fleet


# -- names, numbers, source data --------------------------------------------------------------------------------


def test_no_name_leads_out_of_the_folder(model, tmp_path):
    fleet = tidefast.Fleet(model, "eta", resident=1, folder=tmp_path / "deep" / "idle")
    for i, name in enumerate(AWKWARD):
        fleet[name](images(i))
    fleet.snapshot(tmp_path / "deep" / "snap")
    assert {path.name for path in tmp_path.iterdir()} == {"deep"}
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"idle", "snap"}
    again = tidefast.Fleet(model, "eta")
    assert again.restore(tmp_path / "deep" / "snap") == sorted(AWKWARD)
    for i, name in enumerate(AWKWARD):
        adapter = tidefast.adapt(model, "eta")
        adapter(images(i))
        assert torch.equal(again[name].predict(images(3)), adapter.predict(images(3)))


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\0b", "\ud800", 7, None])
def test_a_name_is_short_and_printable(fleet, name):
    with pytest.raises((ValueError, TypeError), match="name"):
        fleet[name]


@pytest.mark.slow
def test_thousands_of_streams(tmp_path):
    """2,000 streams of a tiny network, 50 of them in memory; each stays itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    data = torch.rand(64, 4, 6, generator=torch.Generator().manual_seed(1))
    fleet = tidefast.Fleet(model, "tent", workers=2, resident=50)
    order = [f"s{i}" for i in range(2000)]
    for name in order:
        fleet[name](data[int(name[1:]) % 64])
    assert len(fleet) == 2000
    assert sum(fleet.status(name)["where"] == "memory" for name in fleet) == 50
    assert fleet.snapshot(tmp_path / "snap") == 2000
    random.Random(0).shuffle(order)
    for name in order[:200]:
        adapter = tidefast.adapt(model, "tent")
        adapter(data[int(name[1:]) % 64])
        assert torch.equal(fleet[name](data[7]), adapter(data[7]))


def test_a_stream_costs_a_small_multiple_of_its_adapted_parameters(model):
    fleet = tidefast.Fleet(model, "eta", reset="asr", workers=2)
    adapted = len(tidefast.adapt(model, "eta").network.arena)
    for i in range(20):
        for step in range(3):
            fleet[f"s{i}"](images(100 * i + step))
    # values, momentum, ASR's two sums and two averages; ETA's memory of the ten classes
    assert fleet.numbers_held() <= 20 * (6 * adapted + 10)
    frozen = sum(p.numel() for p in model.parameters())
    assert fleet.numbers_held() / 20 < 0.2 * frozen


def test_source_data_is_read_once(model):
    read = 0

    def loader():
        nonlocal read
        for seed in range(3):
            read += 1
            yield images(seed)

    fleet = tidefast.Fleet(model, "eata", workers=3, source=loader())
    assert read == 3
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda i: fleet[f"s{i}"](images(i)), range(6)))
    adapter = tidefast.adapt(model, "eata", source=[images(seed) for seed in range(3)])
    adapter(images(4))
    assert torch.equal(fleet["s4"].predict(images(9)), adapter.predict(images(9)))


def test_a_worker_that_could_not_be_made_is_made_later(fleet, monkeypatch):
    make = fleet._pool.make
    monkeypatch.setattr(fleet._pool, "make", lambda: (_ for _ in ()).throw(MemoryError("no room")))
    for _ in range(3):
        with pytest.raises(MemoryError):
            fleet["x"](images(0))
    monkeypatch.setattr(fleet._pool, "make", make)
    assert fleet["x"](images(0)).shape == (8, 10)


class _Slow(nn.Module):
    """A network that takes its time."""

    seconds = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.inner(given)


def _no_space(*arguments, **options):
    raise OSError(28, "No space left on device")


def test_a_stream_is_an_adapter_without_a_network_of_its_own():
    fleet = tidefast.Fleet(small_network(), "tent")
    stream = fleet["a"]
    assert isinstance(stream, tidefast.Adapter)
    assert stream.numbers_held() == 0
    stream(torch.rand(8, 3, 16, 16))
    assert 0 < stream.numbers_held() <= 8 * len(tidefast.adapt(small_network(), "tent").network.arena)
    with pytest.raises(AttributeError, match="a stream of a fleet has no 'network' of its own"):
        stream.network  # noqa: B018 (the access is what is tested)
