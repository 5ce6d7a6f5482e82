"""The service on a real Ray cluster of three nodes on this machine: nodes and processes are killed under load.

Every answer is compared, bit for bit, with a lone adapter that was fed the same batches. The tests share one cluster,
and each leaves it whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="left out: httpx is not installed")
pytest.importorskip("ray", reason="left out: the extra `ray` is not installed")

import serving
from serving import Connection, Levels, Running, Step

import tidefast
from test_open_inference import ProtocolClient
from tidefast import cli
from tidefast.serve.cluster.joining import NODE
from tidefast.serve.cluster.layout import partition_of
from tidefast.serve.hold import FolderHold

pytestmark = pytest.mark.slow

PICTURES = serving.pictures(512)
PARTITIONS = 3
STREAMS = [f"camera-{number}" for number in (0, 1, 2, 7, 8, 10)]
OPTIONS = (
    *("--partitions", str(PARTITIONS), "--snapshot-every", "600", "--max-wait", "0", "--lease", "3"),
    *("--log", "json"),
)
MINUTE = 60.0


# -- a cluster ---------------------------------------------------------------------------------------------------------


class Nodes:
    """Three nodes of Ray, and a front on each of them."""

    def __init__(self, state: Path) -> None:
        from ray.cluster_utils import Cluster

        self.state = state
        self._stack = contextlib.ExitStack()
        self._ends: dict[int, contextlib.ExitStack] = {}
        self.ray = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "node_ip_address": self.address(0), "include_dashboard": False},
        )
        self.nodes = {0: self.ray.head_node}
        self.fronts: dict[int, Running] = {}

    @staticmethod
    def address(number: int) -> str:
        return f"127.0.0.{number + 2}"  # Ray takes 127.0.0.1 for another name of the machine

    def add_node(self, number: int) -> None:
        self.nodes[number] = self.ray.add_node(num_cpus=1, node_ip_address=self.address(number))

    def add_front(self, number: int, *more: str) -> Running:
        own = self._ends[number] = contextlib.ExitStack()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(NODE, self.address(number))
            service = serving.serving(self.state, "--cluster", self.ray.address, *OPTIONS, *more)
            self.fronts[number] = own.enter_context(service)
        return self.fronts[number]

    def end_front(self, number: int) -> int:
        """As an engineer does: with SIGTERM; the exit code."""
        front = self.fronts.pop(number)
        front.process.send_signal(signal.SIGTERM)
        code = front.process.wait(2 * MINUTE)
        self._ends.pop(number).close()
        return code

    def kill_node(self, number: int) -> None:
        """Everything on it, at once."""
        front = self.fronts.pop(number)
        front.process.kill()
        self.ray.remove_node(self.nodes.pop(number), allow_graceful=False)
        self._ends.pop(number).close()

    def partitions(self, front: int = 0) -> list[dict[str, Any]]:
        with self.fronts[front].client() as client:
            found: list[dict[str, Any]] = client.get("/v1/info").json()["partitions"]
        return found

    def whole(self, nodes: int = PARTITIONS) -> bool:
        """Whether every partition serves, on so many nodes."""
        found = self.partitions()
        return all(one["phase"] == "serving" for one in found) and len({one["node"] for one in found}) == nodes

    def node_of(self, partition: int) -> int:
        node = self.partitions()[partition]["node"]
        return next(number for number, one in self.nodes.items() if one.node_id == node)

    def close(self) -> None:
        for own in self._ends.values():
            own.close()
        self.ray.shutdown()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        nodes = Nodes(tmp_path_factory.mktemp("cluster") / "state")
        try:
            for number in range(PARTITIONS):
                if number:
                    nodes.add_node(number)
                nodes.add_front(number)
            eventually(nodes.whole)
            yield nodes
        finally:
            nodes.close()


def eventually(true: Callable[[], bool], seconds: float = 2 * MINUTE) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.3)


# -- clients -----------------------------------------------------------------------------------------------------------


@dataclass
class Client:
    """Sends images to one stream, one request after the other, and notes what becomes of the stream."""

    stream: str
    steps: list[Step] = field(default_factory=list)
    """What the stream has seen."""
    unanswered: Levels | None = None
    refused: list[str] = field(default_factory=list)
    lost: int = 0
    """Steps that were answered, and then gone."""
    safe: int = 0
    """Steps that were answered before a snapshot."""
    gone: list[list[Step]] = field(default_factory=list)
    """What the stream had seen before it went back."""
    place: int = 0

    @property
    def partition(self) -> int:
        return partition_of(self.stream, PARTITIONS)

    async def send(self, connection: Connection) -> bool:
        """Whether it was answered."""
        levels = PICTURES[self.place : self.place + 6]
        self.place = (self.place + 7) % 500
        body = serving.npy(levels)
        try:
            status, said = await connection.ask("POST", serving.path_of(self.stream), body)
        except ConnectionError:  # the front is gone
            self.refused.append("connection")
            self.unanswered = levels
            return False
        if status != 200:
            assert (status, said["reason"]) in ((503, "moving"), (503, "stopping"), (504, "timeout")), said
            self.refused.append(said["reason"])
            self.unanswered = levels
            return False
        self._note(said["step"], serving.Answer(levels, said))
        return True

    def _note(self, step: int, answer: serving.Answer) -> None:
        if step == len(self.steps) + 2 and self.unanswered is not None:  # a request without an answer was a step
            made = self.checked(self.steps)(serving.as_tensor(self.unanswered))
            self.steps.append(Step(step - 1, self.unanswered, made))
        if step <= len(self.steps):  # back to a snapshot
            assert self.refused, f"{self.stream} went back to step {step} from {len(self.steps)} and nobody was told"
            assert step > self.safe, f"{self.stream} went back to step {step}, behind a snapshot of step {self.safe}"
            self.gone.append(self.steps.copy())
            self.lost += len(self.steps) - step + 1
            del self.steps[step - 1 :]
        assert step == len(self.steps) + 1, f"{self.stream} is at {step}, after {len(self.steps)}"
        self.unanswered = None
        self.steps.append(Step(step, answer.levels, answer.logits))

    def checked(self, steps: list[Step]) -> tidefast.Adapter:
        adapter = serving.lone()
        assert serving.wrong_answers(adapter, steps) == 0, self.stream
        return adapter

    def check(self) -> None:
        """All answers, those that were lost later too."""
        for steps in (*self.gone, self.steps):
            self.checked(steps)
        self.gone.clear()


def load(fronts: dict[int, Running], clients: list[Client], during: Callable[[], Awaitable[Any]]) -> None:
    """All clients send, each by the front that is next, until `during` has ended and each was answered once more."""
    over = asyncio.Event()

    async def client(one: Client, number: int) -> None:
        connections = [Connection(front.port) for front in fronts.values()]
        try:
            last = answered = False
            while not (last and answered):
                last = over.is_set()
                connection = connections[number % len(connections)]
                answered = await one.send(connection)
                if not answered:
                    number += 1
                    connection.close()  # before the front ends it, because nothing comes
                await asyncio.sleep(0.3)
        finally:
            for connection in connections:
                connection.close()

    async def main() -> None:
        async with asyncio.timeout(3 * MINUTE), asyncio.TaskGroup() as tasks:
            for number, one in enumerate(clients):
                tasks.create_task(client(one, number))
            await during()
            over.set()

    asyncio.run(main())


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    """One for each stream; what they know lasts as long as the cluster."""
    assert Counter(partition_of(name, PARTITIONS) for name in STREAMS) == dict.fromkeys(range(PARTITIONS), 2)
    return [Client(name) for name in STREAMS]


async def snapshot(front: Running, clients: list[Client]) -> None:
    for one in clients:
        one.safe = len(one.steps)
    with contextlib.closing(Connection(front.port)) as connection:
        status, said = await connection.ask("POST", "/v1/snapshots")
    assert status == 201, said


# -- tests -------------------------------------------------------------------------------------------------------------


def test_any_node_answers_for_all_streams(nodes, clients):
    async def nothing() -> None:
        await asyncio.sleep(1.0)

    load(nodes.fronts, clients, nothing)
    for one in clients:
        assert not one.refused
        one.check()
    for front in nodes.fronts.values():
        with front.client() as http:
            assert [one["name"] for one in http.get("/v1/streams").json()] == sorted(STREAMS)
            assert {one["name"] for one in http.get("/v1/streams?order=attention").json()} == set(STREAMS)
            page = http.get("/v1/streams?limit=2&after=camera-1").json()
            assert [one["name"] for one in page] == ["camera-10", "camera-2"]
            for client in clients:
                assert http.get(f"/v1/streams/{client.stream}").json()["step"] == len(client.steps)
            assert http.get("/v1/info").json()["streams"] == len(STREAMS)
            assert http.get("/v1/alarms").json() == []
            assert http.get("/readyz").status_code == 200
            assert http.get("/v1/streams/nobody").status_code == 404
            numbers = http.get("/metrics").text
            assert numbers.count("tidefast_partition_up{") == PARTITIONS
            steps = [line.split()[1] for line in numbers.splitlines() if line.startswith("tidefast_steps_total{")]
            assert sum(map(float, steps)) == sum(len(one.steps) for one in clients)


def test_snapshots_rollback_freeze_and_the_rest_reach_the_right_partition(nodes):
    async def step(name: str, count: int) -> None:
        with contextlib.closing(Connection(nodes.fronts[1].port)) as connection:
            for _ in range(count):
                await serving.adapt(connection, name, PICTURES[:4])

    names = [f"other-{number}" for number in range(4)]
    with nodes.fronts[0].client() as first, nodes.fronts[2].client() as second:
        for name in names:
            asyncio.run(step(name, 2))
        taken = first.post("/v1/snapshots")
        assert taken.status_code == 201
        for name in names:
            asyncio.run(step(name, 1))
        assert taken.json()["name"] in [one["name"] for one in second.get("/v1/snapshots").json()]
        for name in names:
            path = f"/v1/streams/{name}"
            assert second.post(f"{path}/rollback", json={"snapshot": taken.json()["name"]}).json()["step"] == 2
            assert first.post(f"{path}/freeze").json()["frozen"] is True
            asyncio.run(step(name, 1))
            assert second.get(path).json()["step"] == 2
            assert len(second.get(f"{path}/history").json()) >= 2
            assert first.post(f"{path}/reset").json()["step"] == 0
            assert second.delete(path).status_code == 204
            assert first.get(path).status_code == 404
        assert second.post("/v1/streams/other-0/rollback", json={"snapshot": "000001"}).status_code == 404


def test_the_open_inference_protocol_and_the_live_page_are_on_every_node(nodes):
    alone = serving.lone()
    for step, (front, levels) in enumerate(
        zip(nodes.fronts.values(), PICTURES[:24].reshape(3, 8, 32, 32, 3), strict=True)
    ):
        told = ProtocolClient(front.address, serving.TOKEN)
        assert told.ask("v2/health/ready").content["ready"] is True
        reply = told.infer("bundled-resnet", levels, parameters={"stream": "protocol"})
        expected = alone(serving.as_tensor(levels)).numpy()
        assert reply.content["parameters"]["step"] == step + 1
        assert (reply.tensors["logits"] == expected).all()
        with front.client() as http:
            page = http.get("/")
            assert page.status_code == 200
            assert "text/html" in page.headers["content-type"]
    with nodes.fronts[0].client() as http:
        assert http.delete("/v1/streams/protocol").status_code == 204


@pytest.mark.parametrize(("partition", "fault"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_a_process_that_is_killed_or_hangs_costs_its_own_partition_the_steps_since_the_snapshot(
    nodes, clients, partition, fault
):
    victim = nodes.partitions()[partition]["process"]

    async def hurt() -> None:
        await snapshot(nodes.fronts[0], clients)
        await asyncio.sleep(1.0)
        os.kill(victim, fault)
        await asyncio.sleep(2.0)

    load(nodes.fronts, clients, hurt)
    after(clients, hurt={partition})
    eventually(lambda: nodes.partitions()[partition]["process"] != victim and nodes.whole())


def test_a_node_killed_under_load_costs_its_own_partition_the_steps_since_the_snapshot(nodes, clients):
    hurt = next(index for index in range(PARTITIONS) if nodes.node_of(index) != 0)
    number = nodes.node_of(hurt)
    fronts = dict(nodes.fronts)

    async def kill() -> None:
        await snapshot(nodes.fronts[0], clients)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(nodes.kill_node, number)
        await asyncio.sleep(1.0)

    load(fronts, clients, kill)
    after(clients, hurt={hurt}, front=True)
    with nodes.fronts[0].client() as http:
        assert {one["name"] for one in http.get("/v1/streams").json()} == set(STREAMS)
    nodes.add_node(number)  # a new one in its place: partitions move there
    nodes.add_front(number)
    eventually(nodes.whole)


def test_a_rolling_restart_loses_nothing(nodes, clients):
    for one in clients:
        one.refused.clear()
    fronts = {number: front for number, front in nodes.fronts.items() if number != 1}

    async def restart() -> None:
        assert await asyncio.to_thread(nodes.end_front, 1) == 0
        await asyncio.to_thread(eventually, lambda: nodes.whole(nodes=2))
        await asyncio.to_thread(nodes.add_front, 1)
        await asyncio.to_thread(eventually, nodes.whole)

    load(fronts, clients, restart)
    for one in clients:
        assert set(one.refused) <= {"moving"}
        assert one.lost == 0
        one.check()


def test_an_end_of_the_whole_cluster_keeps_everything(nodes, clients):
    log = nodes.fronts[0].log
    for number in sorted(nodes.fronts, reverse=True):
        assert nodes.end_front(number) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {f"partition {number}" for number in range(PARTITIONS)} <= {line.get("actor") for line in lines}
    for message in ("partition 1 does not serve", "partition 1 serves again"):  # it was stopped for long
        assert any(message in line["message"] for line in lines)
    nodes.add_front(0)
    with nodes.fronts[0].client() as http:
        found = {one["name"]: one["step"] for one in http.get("/v1/streams").json()}
    assert found == {one.stream: len(one.steps) for one in clients}

    async def nothing() -> None:
        await asyncio.sleep(0.1)

    load(nodes.fronts, clients, nothing)
    for one in clients:
        assert one.lost == 0
        one.check()


def test_a_front_that_cannot_listen_leaves_no_partition_behind(nodes):
    for number in sorted(nodes.fronts, reverse=True):
        assert nodes.end_front(number) == 0
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RuntimeError, match="cannot listen"):
        nodes.add_front(0, "--port", str(taken.getsockname()[1]), "--keep", "7")
    nodes.add_front(0)  # with other settings, which are refused as long as anything serves with those


LEAVING = """
import sys, time
from pathlib import Path
import ray
from tidefast.serve.cluster.joining import _connected
from tidefast.serve.cluster.steward import STEWARD
with _connected(sys.argv[1], Path(sys.argv[2])):
    while not ray.get(ray.get_actor(STEWARD).leave.remote("gone", "gone")).last:
        time.sleep(1.0)
"""
"""What the last front does at its end, but for ending the steward."""


def test_a_last_front_that_is_killed_while_it_leaves_does_not_close_the_cluster_for_ever(nodes, monkeypatch):
    for number in sorted(nodes.fronts.keys() - {0}, reverse=True):
        assert nodes.end_front(number) == 0
    nodes.fronts.pop(0).process.kill()
    monkeypatch.setenv(NODE, nodes.address(0))
    command = [sys.executable, "-c", LEAVING, nodes.ray.address, str(nodes.state.resolve())]
    subprocess.run(command, check=True, timeout=3 * MINUTE)
    nodes.add_front(0, "--keep", "7")


def after(clients: list[Client], hurt: set[int], front: bool = False) -> None:
    """What a fault may have cost: streams of the partitions that were hurt some steps, all others nothing.

    front: a front was lost too, and with it the connections to it.
    """
    lost = 0
    for one in clients:
        one.check()
        if one.partition in hurt:
            lost += one.lost
            assert one.refused, "a fault that nobody felt shows nothing"
        else:
            assert one.lost == 0
            assert set(one.refused) <= ({"connection"} if front else set())
        one.refused.clear()
        one.lost = 0
    assert lost > 0, "no step was lost: the test has shown nothing"


def test_a_cluster_of_one_machine_has_its_folder_for_itself(tmp_path):
    state = tmp_path / "state"
    with (
        contextlib.closing(FolderHold(state)),
        pytest.raises(RuntimeError, match="another process is running in"),
        serving.serving(state, "--cluster", "--partitions", "1"),
    ):
        pass


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--partitions", "2"), "give --cluster too"),
        (("--cluster", "127.0.0.1:1", "--partitions", "2"), "no Ray cluster answers at 127.0.0.1:1"),
        (("--cluster", "--partitions", "0"), "partitions must be"),
    ],
)
def test_bad_options_end_with_one_line(given, said, tmp_path, capsys):
    assert cli.main(["serve", "--state", str(tmp_path / "state"), *given]) == 2
    line = capsys.readouterr().err.strip()
    assert said in line.splitlines()[-1]
