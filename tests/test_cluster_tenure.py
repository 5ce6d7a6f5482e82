"""One writer for a partition: who was given up neither answers nor writes anything that is seen, however late."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")

import tidefast
from tidefast.serve.assembly import open_service
from tidefast.serve.cluster import tenure as tenures
from tidefast.serve.cluster.layout import ClusterLayout, made_layout, partition_of
from tidefast.serve.cluster.partition import Partition
from tidefast.serve.cluster.tenure import LostTenureError, Tenure
from tidefast.serve.settings import Settings
from tidefast.serve.snapshots import Snapshots
from tidefast.testing import small_network

LEASE = 0.5
NETWORK = small_network()


class Holder:
    """In charge of a partition, with a fleet, as a service has it."""

    def __init__(self, folder: Path, lease: float = LEASE, clock: Callable[[], float] = tenures._clock) -> None:
        self.tenure = Tenure(folder, lease, clock)
        self.tenure.take_over()
        self.snapshots = Snapshots(self.tenure.folder, 3, lambda name, problem: None)
        self.fleet = tidefast.Fleet(NETWORK, "tent", folder=self.snapshots.idle)
        self.snapshots.restore(self.fleet)
        self.tenure.look()

    def step(self, name: str) -> int:
        self.fleet[name](torch.rand(4, 3, 16, 16))
        self.snapshots.begin(self.fleet, name)
        return self.fleet[name].step

    def end(self) -> None:
        self.snapshots.close()
        self.tenure.end()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_term_is_claimed_by_one_process(tmp_path):
    together = threading.Barrier(8)

    def claim(_: int) -> int:
        together.wait()
        return Tenure(tmp_path, LEASE).number

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(claim, range(8))) == list(range(1, 9))


def test_a_successor_goes_on_from_the_last_snapshot_and_keeps_all_of_them(tmp_path):
    first = Holder(tmp_path)
    first.step("a")
    first.snapshots.take(first.fleet)
    first.step("a")
    first.snapshots.take(first.fleet)
    first.step("a")
    first.step("late")
    first.end()
    second = Holder(tmp_path)
    assert {name: second.fleet[name].step for name in second.fleet} == {"a": 2, "late": 0}
    assert second.snapshots.numbers() == [1, 2]
    assert second.tenure.number == 2
    second.end()


def test_what_a_former_holder_writes_is_not_seen_however_late(tmp_path):
    former = Holder(tmp_path)
    former.step("a")
    former.snapshots.take(former.fleet)
    successor = Holder(tmp_path)  # as if the former could not be reached: it has given up nothing
    successor.step("a")
    successor.snapshots.take(successor.fleet)
    before = tree(successor.tenure.folder)
    for _ in range(5):  # more than are kept: those that were taken over are removed from its own folder
        former.step("a")
        former.step("b")
        former.snapshots.take(former.fleet)
    former.snapshots.drop(former.fleet, "a")
    assert tree(successor.tenure.folder) == before
    former.snapshots.close()
    successor.end()
    third = Holder(tmp_path)
    assert {name: third.fleet[name].step for name in third.fleet} == {"a": 2}
    third.end()


def test_a_holder_that_sees_a_claim_above_its_own_gives_up(tmp_path):
    former = Holder(tmp_path)
    assert former.tenure.holds()
    Tenure(tmp_path, LEASE)
    with pytest.raises(LostTenureError):
        former.tenure.look()
    assert not former.tenure.holds()


@pytest.mark.parametrize("speed", [0.85, 1.0, 1.15])
def test_nobody_answers_any_more_when_a_successor_begins(tmp_path, speed):
    """A holder that cannot look, and whose clock runs slower or faster, by less than a fifth."""
    began = time.monotonic()
    former = Holder(tmp_path, clock=lambda: began + speed * (time.monotonic() - began))
    former.tenure.look()
    assert former.tenure.holds()
    Holder(tmp_path)
    assert not former.tenure.holds()


def test_a_successor_waits_for_a_living_holder_alone(tmp_path, monkeypatch):
    waits: list[bool] = []

    def begun() -> Holder:
        slept: list[float] = []
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", lambda seconds, sleep=time.sleep: (slept.append(seconds), sleep(seconds)))
            holder = Holder(tmp_path)
        waits.append(any(slept))
        return holder

    begun().end()  # before it there was nobody
    begun().snapshots.close()  # before it one that has ended; it itself dies now: the system frees its lock
    begun().snapshots.close()
    with monkeypatch.context() as patch:
        patch.setattr(tenures, "_kernel", lambda: "another machine")  # whose locks do not reach us
        living = begun()
    begun()
    living.snapshots.close()
    assert waits == [False, False, False, True, True]


def test_a_takeover_that_was_never_finished_is_passed_over(tmp_path):
    first = Holder(tmp_path)
    first.step("a")
    first.snapshots.take(first.fleet)
    first.end()
    Tenure(tmp_path, LEASE)  # killed before it has read anything
    second = Holder(tmp_path)
    assert second.tenure.number == 3
    assert second.fleet["a"].step == 1
    second.end()


def test_a_holder_that_loses_sight_of_the_storage_stops_answering_and_may_go_on_when_nobody_came(tmp_path):
    now = [0.0]
    holder = Tenure(tmp_path / "partition", 10.0, lambda: now[0])
    holder.take_over()
    assert holder.look()
    shutil.move(tmp_path / "partition", tmp_path / "away")
    now[0] = 7.9
    with pytest.raises(OSError, match="No such file"):
        holder.look()
    assert holder.holds()
    now[0] = 8.1
    assert not holder.holds()
    shutil.move(tmp_path / "away", tmp_path / "partition")
    assert holder.look()
    assert holder.holds()


def test_what_former_terms_left_is_cleared_away(tmp_path):
    for _ in range(4):
        Holder(tmp_path).end()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000003", "000004", "terms"]
    assert sorted(path.name for path in (tmp_path / "terms").iterdir()) == ["000004", "000004.ended"]


# -- the layout -----------------------------------------------------------------------------------------------------


def test_streams_are_spread_over_partitions(tmp_path):
    counts = np.bincount([partition_of(f"camera-{number}", 8) for number in range(8000)])
    assert counts.min() > 850
    assert counts.max() < 1150


def test_a_state_keeps_its_number_of_partitions(tmp_path):
    first = made_layout(tmp_path, None, otherwise=3)
    assert first.partitions == 3
    assert made_layout(tmp_path, None, otherwise=5) == made_layout(tmp_path, 3, otherwise=5) == first
    with pytest.raises(ValueError, match="divided into 3 partitions, got --partitions 4"):
        made_layout(tmp_path, 4, otherwise=1)
    (tmp_path / "other" / "snapshots").mkdir(parents=True)
    with pytest.raises(ValueError, match="without --cluster"):
        made_layout(tmp_path / "other", None, otherwise=1)


def test_one_process_does_not_begin_beside_the_streams_of_a_cluster(tmp_path):
    made_layout(tmp_path, 2, otherwise=1)
    with pytest.raises(ValueError, match="holds the streams of a cluster: give --cluster too"):
        open_service(Settings(state=tmp_path, threads=1))
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


def test_nodes_that_make_a_layout_at_once_agree(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda count: made_layout(tmp_path, None, count), range(1, 9)))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


# -- a process that is stopped -----------------------------------------------------------------------------------------

STREAMS = [f"camera-{number}" for number in range(3)]
SLEEP = 2.0
"""The lease of the processes below."""


def settings(state: Path) -> Settings:
    return Settings(method="tent", state=state, snapshot_every=0.3, max_wait=0.0, lease=SLEEP)


async def serving(partition: Partition) -> Partition:
    async with asyncio.timeout(60):
        while (await partition.condition()).phase != "serving":
            await asyncio.sleep(0.02)
    return partition


async def step(partition: Partition, name: str) -> tuple[int, int] | None:
    """Term and step of an answer; None when it was refused."""
    reply = await partition.ask("answer", name, np.zeros((4, 32, 32, 3), np.uint8), True)
    return None if reply.refused else (reply.term, reply.value.step)


def test_a_partition_may_leave_before_it_has_begun_and_else_after_a_snapshot(tmp_path):
    """One front after the other ends: a partition that is moving still has to move on."""

    async def main() -> None:
        layout = made_layout(tmp_path, None, otherwise=1)
        Tenure(ClusterLayout.folder_of(tmp_path, 0), SLEEP)  # a holder that says nothing: its lease is waited for
        beginning = Partition(settings(tmp_path), layout, 0)
        async with asyncio.timeout(60):
            while (await beginning.condition()).term == 0:  # it is to claim its term before the successor does
                await asyncio.sleep(0.01)
        assert (await beginning.condition()).phase == "starting"
        assert await beginning.ready_to_leave() == ""
        assert await beginning.leave()
        successor = await serving(Partition(settings(tmp_path), layout, 0))
        assert await step(successor, "camera") is not None
        assert await successor.ready_to_leave() == ""
        assert [one["streams"] for one in (await successor.ask("listed_snapshots")).value][-1] == 1
        Tenure(ClusterLayout.folder_of(tmp_path, 0), SLEEP)
        await asyncio.sleep(SLEEP)
        assert "is being taken over" in await successor.ready_to_leave()
        await successor.leave()

    asyncio.run(main())


def stepping(state: str, fenced: bool) -> None:
    """The process: steps all streams, and tells of each answer; in its folder snapshots appear meanwhile."""
    if not fenced:
        Tenure.holds = lambda self: True  # type: ignore[method-assign]

    async def main() -> None:
        layout = made_layout(Path(state), None, otherwise=1)
        partition = await serving(Partition(settings(Path(state)), layout, 0))
        while True:
            for name in STREAMS:
                answered = await step(partition, name)
                sys.stdout.write(json.dumps([name, answered, time.monotonic()]) + "\n")
                sys.stdout.flush()
                if answered is None:
                    await asyncio.sleep(0.05)

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("fenced", [True, False])
def test_a_stopped_process_that_wakes_after_a_takeover_advances_no_stream(tmp_path, fenced):
    """Without the fence it does: the same test with a process that takes itself for the holder for ever."""
    code = f"import test_cluster_tenure as test; test.stepping({str(tmp_path)!r}, {fenced})"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    ) as former:
        try:
            assert former.stdout is not None
            first = [json.loads(former.stdout.readline()) for _ in range(12)]
            assert all(answered is not None for _, answered, _ in first)
            former.send_signal(signal.SIGSTOP)
            asyncio.run(take_over(tmp_path, former, fenced))
        finally:
            former.kill()


async def take_over(state: Path, former: subprocess.Popen[str], fenced: bool) -> None:
    layout = made_layout(state, None, otherwise=1)
    successor = await serving(Partition(settings(state), layout, 0))
    steps = {name: [await step(successor, name) for _ in range(3)] for name in STREAMS}
    folder = ClusterLayout.folder_of(state, 0) / "000002"
    await successor.ask("snapshot")
    before = tree(folder / "snapshots").keys()
    woken = time.monotonic()
    former.send_signal(signal.SIGCONT)
    told: list[tuple[int, int] | None] = []
    """What it said after it woke."""

    def listen() -> None:
        assert former.stdout is not None
        said = map(json.loads, former.stdout)
        told.extend(answered for _, answered, moment in said if moment > woken)

    listening = threading.Thread(target=listen)
    listening.start()
    await asyncio.sleep(2.0)
    former.kill()
    await asyncio.to_thread(listening.join)
    assert len(told) > 10, "it was to wake"
    if not fenced:
        assert any(told), "without the fence two processes answer"
        await successor.leave()
        return
    assert not any(told), "an answer of a process that is not in charge"
    assert tree(folder / "snapshots").keys() == before, "nobody wrote there"
    for name, answered in steps.items():
        last = answered[-1]
        assert last is not None
        assert await step(successor, name) == (2, last[1] + 1), "nobody else advanced it"
    assert await successor.leave()
    third = await serving(Partition(settings(state), layout, 0))
    for name, answered in steps.items():
        assert await step(third, name) == (3, answered[-1][1] + 2), "and nothing else is found later"
    await third.leave()
