"""Idle streams whose files cannot be read, are damaged or are gone: nothing is thrown back in silence."""

from __future__ import annotations

import contextlib
import errno
import shutil
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="left out: httpx is not installed")

import torch

import test_serve as clients
import tidefast
from test_serve import LEVELS, lone, running, send
from tidefast import serve
from tidefast.fleet.manifest import file_name
from tidefast.serve.snapshots import Snapshots
from tidefast.streams import as_tensor


def post(client, name, array):
    return client.post(f"/v1/streams/{name}/adapt", content=clients.npy(array), headers=clients.NPY)


def idle_after(client, snapshot_at: int, steps: int) -> None:
    """The stream x at step `steps`, on disk; the newest snapshot has it at step `snapshot_at`."""
    for number in range(steps):
        send(client, "x", LEVELS[number])
        if number + 1 == snapshot_at:
            assert client.post("/v1/snapshots").status_code == 201
    send(client, "y", LEVELS[0])
    assert client.get("/v1/streams/x").json()["where"] == "disk"


def failing_reads(monkeypatch, error: Exception, times: int) -> list[Path]:
    """Reads of streams' files fail so often, and then work."""
    failed: list[Path] = []
    whole = Path.read_bytes

    def read_bytes(path):
        if path.suffix == ".safetensors" and len(failed) < times:
            failed.append(path)
            raise error
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    return failed


PASSING = [OSError(errno.EMFILE, "Too many open files"), OSError(errno.EIO, "I/O error"), MemoryError()]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_an_error_that_passes_costs_no_step(tmp_path, monkeypatch, error):
    with running(tmp_path, max_wait=0.0, resident=1) as client:
        idle_after(client, snapshot_at=1, steps=3)
        failed = failing_reads(monkeypatch, error, times=1)
        said = send(client, "x", LEVELS[3], logits="true")
        assert failed
        assert (said["step"], "lost" in said) == (4, False)
        adapter = lone()
        for number in range(3):
            adapter(as_tensor(LEVELS[number]))
        assert torch.equal(torch.tensor(said["logits"]), adapter(as_tensor(LEVELS[3])))
        assert "tidefast_lost_steps_total 0.0" in client.get("/metrics").text


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_as_long_as_a_stream_cannot_be_read_it_is_503_and_stays(tmp_path, monkeypatch, error):
    with running(tmp_path, max_wait=0.0, resident=1) as client:
        idle_after(client, snapshot_at=1, steps=3)
        with monkeypatch.context() as patched:
            failing_reads(patched, error, times=10**6)
            answer = post(client, "x", LEVELS[3])
            assert (answer.status_code, answer.json()["reason"]) == (503, "storage")
            assert answer.headers["Retry-After"]
            assert client.get("/readyz").json()["problems"] == ["idle streams that cannot be read: 1"]
            rolled = client.post("/v1/streams/x/rollback", json={"snapshot": "000001"})
            assert (rolled.status_code, rolled.json()["reason"]) == (503, "storage")
        assert send(client, "x", LEVELS[3])["step"] == 4
        assert client.get("/readyz").status_code == 200
        assert client.get("/v1/alarms").json() == []


def test_a_snapshot_that_cannot_be_read_now_is_not_passed_over(tmp_path, monkeypatch):
    """The idle file is gone for good, the newest snapshot only for a moment: an older one must not be taken."""
    with running(tmp_path, max_wait=0.0, resident=1) as client:
        idle_after(client, snapshot_at=1, steps=2)
        assert client.post("/v1/snapshots").status_code == 201
        (found,) = (tmp_path / "idle").rglob(file_name("x"))
        found.unlink()
        with monkeypatch.context() as patched:
            failing_reads(patched, OSError(errno.EMFILE, "Too many open files"), times=10**6)
            assert post(client, "x", LEVELS[2]).status_code == 503
        assert send(client, "x", LEVELS[2])["step"] == 3


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_stream_that_loses_steps_says_how_many(tmp_path, how):
    with running(tmp_path, max_wait=0.0, resident=1) as client:
        idle_after(client, snapshot_at=1, steps=4)
        (found,) = (tmp_path / "idle").rglob(file_name("x"))
        found.write_bytes(b"rubbish") if how == "damaged" else found.unlink()
        said = send(client, "x", LEVELS[4])
        assert (said["step"], said["lost"]) == (2, 3)
        (alarm,) = client.get("/v1/alarms").json()
        assert (alarm["stream"], alarm["kind"], alarm["value"]) == ("x", "lost", 3)
        numbers = client.get("/metrics").text
        assert "tidefast_lost_steps_total 3.0" in numbers
        assert 'tidefast_alarms{kind="lost"} 1.0' in numbers
        assert "lost" not in send(client, "x", LEVELS[5])
        assert client.get("/v1/alarms").json() != []
        assert send(client, "x", LEVELS[6])["step"] == 4
        assert client.get("/v1/alarms").json() == []


def begun_again(client) -> None:
    """The stream x at its step 2; the newest snapshot has one of its name that was dropped at step 5."""
    for number in range(5):
        send(client, "x", LEVELS[number])
    assert client.post("/v1/snapshots").status_code == 201
    assert client.delete("/v1/streams/x").status_code == 204
    for number in range(2):
        send(client, "x", LEVELS[number])


def test_a_stream_that_is_lost_does_not_go_on_as_one_of_its_name_that_was_dropped(tmp_path):
    with running(tmp_path, max_wait=0.0, resident=1) as client:
        begun_again(client)
        send(client, "y", LEVELS[0])
        shutil.rmtree(tmp_path / "idle")
        said = send(client, "x", LEVELS[2])
        assert (said["step"], said["lost"]) == (1, 2)
        assert [alarm["value"] for alarm in client.get("/v1/alarms").json()] == [2]


def test_nor_does_one_that_is_damaged_in_the_newest_snapshot(tmp_path):
    with running(tmp_path, max_wait=0.0) as client:
        begun_again(client)
    (tmp_path / "snapshots" / "000002" / file_name("x")).write_bytes(b"rubbish")
    with running(tmp_path, max_wait=0.0) as client:
        assert client.get("/v1/streams/x").json()["step"] == 0
        assert [alarm["value"] for alarm in client.get("/v1/alarms").json()] == [2]


def test_a_stream_lost_after_a_reset_goes_on_from_before_it_and_says_so(tmp_path):
    with running(tmp_path, max_wait=0.0, resident=1) as client:
        idle_after(client, snapshot_at=3, steps=3)
        client.post("/v1/streams/x/reset")
        for number in range(2):
            send(client, "x", LEVELS[number])
        send(client, "y", LEVELS[0])
        shutil.rmtree(tmp_path / "idle")
        said = send(client, "x", LEVELS[2])
        assert (said["step"], said["lost"]) == (4, 2)
        assert [alarm["value"] for alarm in client.get("/v1/alarms").json()] == [2]
        send(client, "x", LEVELS[3])
        assert client.get("/v1/alarms").json() == []


def test_steps_that_were_lost_before_an_answer_are_told_in_the_next(tmp_path):
    with running(tmp_path, max_wait=0.0, resident=1, reset="guard:alpha=0.05") as client:
        idle_after(client, snapshot_at=1, steps=3)
        shutil.rmtree(tmp_path / "idle")
        send(client, "x", LEVELS[3], "feedback", label=[1] * 8)
        assert send(client, "x", LEVELS[3])["lost"] == 2
        assert "lost" not in send(client, "x", LEVELS[4])


def test_a_file_that_is_gone_does_not_stop_the_snapshots_of_the_others(tmp_path):
    with running(tmp_path, max_wait=0.0, resident=1) as client:
        idle_after(client, snapshot_at=1, steps=3)
        shutil.rmtree(tmp_path / "idle")
        assert client.post("/v1/snapshots").status_code == 201
        assert client.get("/v1/streams/x").json()["step"] == 1
        assert [alarm["value"] for alarm in client.get("/v1/alarms").json()] == [2]
        said = send(client, "x", LEVELS[3])
        assert (said["step"], said["lost"]) == (2, 2)
        assert send(client, "y", LEVELS[3])["step"] == 2


def test_a_state_folder_deleted_while_running_is_told_and_made_anew(tmp_path):
    state = tmp_path / "state"
    with running(state, max_wait=0.0, resident=1) as client:
        idle_after(client, snapshot_at=1, steps=3)
        shutil.rmtree(state)
        assert client.get("/readyz").json()["problems"] == ["the state folder is gone"]
        said = send(client, "x", LEVELS[3])
        assert (said["step"], said["lost"]) == (1, 3)
        assert send(client, "new", LEVELS[3])["step"] == 1
        assert client.post("/v1/snapshots").status_code == 201
        assert client.get("/readyz").status_code == 200
        with pytest.raises(tidefast.FolderError, match="another process"):
            Snapshots(state, 5, print)
    with running(state, max_wait=0.0) as client:
        steps = {name: client.get(f"/v1/streams/{name}").json()["step"] for name in ("x", "y", "new")}
        assert steps == {"x": 1, "y": 1, "new": 1}


def test_a_state_folder_that_was_moved_away_loses_nothing(tmp_path):
    state = tmp_path / "state"
    with running(state, max_wait=0.0, resident=1) as client:
        idle_after(client, snapshot_at=1, steps=3)
        state.rename(tmp_path / "away")
        assert client.get("/readyz").status_code == 503
        assert post(client, "x", LEVELS[3]).status_code == 503
        assert post(client, "new", LEVELS[3]).status_code == 503
        assert client.post("/v1/snapshots").status_code == 503
        assert not state.exists()
        (tmp_path / "away").rename(state)
        assert client.post("/v1/snapshots").status_code == 201
        assert send(client, "x", LEVELS[3])["step"] == 4
        assert client.get("/readyz").status_code == 200


def test_removing_the_lock_file_lets_nobody_in(tmp_path):
    with running(tmp_path, max_wait=0.0, resident=1) as client:
        idle_after(client, snapshot_at=1, steps=3)
        (tmp_path / ".lock").unlink()
        with pytest.raises(tidefast.FolderError, match="another process"):
            serve.Service(serve.Settings(state=tmp_path, side=(16, 16)), clients.net(), {"method": "eta"})
        assert send(client, "x", LEVELS[3])["step"] == 4


def test_steps_lost_with_a_damaged_snapshot_are_told_at_the_start(tmp_path):
    with running(tmp_path, max_wait=0.0) as client:
        for number in range(3):
            send(client, "x", LEVELS[number])
            client.post("/v1/snapshots")
    third = max((tmp_path / "snapshots").iterdir())
    (third / file_name("x")).write_bytes(b"rubbish")
    with running(tmp_path, max_wait=0.0) as client:
        (alarm,) = client.get("/v1/alarms").json()
        assert (alarm["stream"], alarm["kind"], alarm["value"]) == ("x", "lost", 1)
    (third / "manifest.json").write_bytes(b"rubbish")
    with running(tmp_path, max_wait=0.0, keep=2) as client:
        assert [(alarm["stream"], alarm["kind"]) for alarm in client.get("/v1/alarms").json()] == [(None, "lost")]
        for _ in range(3):
            client.post("/v1/snapshots")
        assert client.get("/v1/alarms").json() == []


def test_a_snapshot_that_cannot_be_read_at_the_start_ends_the_start(tmp_path, monkeypatch):
    """It may be whole: another start, a moment later, finds it."""
    with running(tmp_path, max_wait=0.0) as client:
        for number in range(2):
            send(client, "x", LEVELS[number])
            client.post("/v1/snapshots")
    with monkeypatch.context() as patched:
        failing_reads(patched, OSError(errno.EMFILE, "Too many open files"), times=1)
        with pytest.raises(OSError, match="Too many open files"), running(tmp_path):
            pass
    with running(tmp_path, max_wait=0.0) as client:
        assert client.get("/v1/streams/x").json()["step"] == 2


def test_the_journal_does_not_grow_with_streams_that_come_and_go(tmp_path):
    with running(tmp_path, max_wait=0.0, keep=1) as client:
        journal = client.service.snapshots.journal
        send(client, "stays", LEVELS[0])
        client.post("/v1/snapshots")
        for number in range(3000):
            journal.begin(f"s{number % 7}")
            journal.drop(f"s{number % 7}", 0)
        assert (tmp_path / "journal.jsonl").read_bytes().count(b"\n") > 6000
        client.post("/v1/snapshots")
        assert (tmp_path / "journal.jsonl").read_bytes() == b'{"stream": "stays", "dropped": null}\n'


def test_a_week_of_streams_with_names_of_their_own_leaves_a_short_journal(tmp_path):
    """Such as one for each visit: none of the names ever comes again."""
    network, longest = clients.net(), 0
    with contextlib.closing(Snapshots(tmp_path, keep=2, on_damage=print)) as snapshots:
        fleet = tidefast.Fleet(network, "tent")
        for hour in range(12 * 7):  # every other hour
            for visit in range(8):
                fleet.begin(f"visit-{hour}-{visit}")
                snapshots.begin(fleet, f"visit-{hour}-{visit}")
                if hour:
                    snapshots.drop(fleet, f"visit-{hour - 1}-{visit}")
            snapshots.take(fleet)
            longest = max(longest, (tmp_path / "journal.jsonl").read_bytes().count(b"\n"))
            assert len(snapshots.journal.dropped) < 600
        assert 1000 < longest < 1150
    with contextlib.closing(Snapshots(tmp_path, keep=2, on_damage=print)) as snapshots:
        again = tidefast.Fleet(network, "tent")
        snapshots.restore(again)
        assert list(again) == list(fleet)


def test_a_stream_that_is_dropped_during_its_last_step_does_not_come_back(tmp_path):
    with contextlib.closing(Snapshots(tmp_path, keep=2, on_damage=print)) as snapshots:
        fleet = tidefast.Fleet(clients.net(), "tent")
        fleet["x"](as_tensor(LEVELS[0]))
        snapshots.begin(fleet, "x")
        snapshots.drop(fleet, "x")
        snapshots.begin(fleet, "x")  # what the request does whose step was the last
    with contextlib.closing(Snapshots(tmp_path, keep=2, on_damage=print)) as snapshots:
        again = tidefast.Fleet(clients.net(), "tent")
        snapshots.restore(again)
        assert list(again) == []


def without_threads(monkeypatch, prefix: str) -> None:
    """As in a container that may have no more: none with such a name can be started."""
    start = threading.Thread.start

    def refusing(thread):
        if thread.name.startswith(prefix):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)


def test_a_snapshot_that_finds_no_thread_is_told_and_the_next_one_works(tmp_path, monkeypatch):
    def eventually(status: int) -> None:
        deadline = time.monotonic() + 60
        while client.get("/readyz").status_code != status:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    with running(tmp_path, max_wait=0.0, snapshot_every=0.1) as client:
        with monkeypatch.context() as patched:
            without_threads(patched, "ThreadPoolExecutor-")
            send(client, "x", LEVELS[0])
            eventually(503)
        eventually(200)
        assert client.get("/v1/snapshots").json()[-1]["streams"] == 1


def test_no_request_needs_a_thread_that_does_not_run_yet(tmp_path, monkeypatch):
    with running(tmp_path, max_wait=0.0, workers=2) as client, monkeypatch.context() as patched:
        without_threads(patched, "tidefast-")
        assert send(client, "x", LEVELS[0])["step"] == 1
        assert client.post("/v1/streams/x/reset").status_code == 200
