"""What can go wrong in production, done to a real service: nothing is lost beyond the promise, no stream is mixed up.

The promise: a stream is never lost; what was answered before a snapshot began survives everything; an end by SIGTERM
loses nothing that was answered; a fault of one stream, client or file harms no other. Every answer is compared, bit for
bit, with a lone adapter that was fed the same batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="left out: httpx is not installed")

import httpx
import serving
from serving import Answer, Connection, Levels, Running, Step

import tidefast
from tidefast.fleet.manifest import file_name

pytestmark = pytest.mark.slow

PICTURES = serving.pictures(1024)
PERIODIC = ("--snapshot-every", "0.3", "--max-wait", "0")
ON_DEMAND = ("--snapshot-every", "600", "--max-wait", "0")


def some(count: int) -> Levels:
    """Other images each time."""
    some.place = getattr(some, "place", 0) + count
    return np.take(PICTURES, range(some.place - count, some.place), axis=0, mode="wrap")


@dataclass
class Client:
    """Sends images to one stream, one request after the other, and knows what should come of them."""

    stream: str
    steps: list[Step] = field(default_factory=list)
    """What the stream has seen."""
    pending: Levels | None = None
    """Sent, and not answered."""

    async def send(self, connection: Connection, levels: Levels) -> None:
        self.pending = levels
        answer = await serving.adapt(connection, self.stream, levels)
        self.pending = None
        self.add(answer)

    def add(self, answer: Answer) -> None:
        said = answer.said
        assert (said["stream"], said["step"]) == (self.stream, len(self.steps) + 1)
        assert said["batch"] == {"size": len(answer.levels), "offset": 0}
        self.steps.append(Step(said["step"], answer.levels, answer.logits))

    def go_back(self, step: int) -> None:
        """The service was restarted and is at `step`; the request without an answer may have been the last one."""
        if step == len(self.steps) + 1 and self.pending is not None:
            unanswered = self.adapter(step - 1)(serving.as_tensor(self.pending))
            self.steps.append(Step(step, self.pending, unanswered))
        assert step <= len(self.steps), f"{self.stream} is at step {step}, which nobody has sent"
        del self.steps[step:]
        self.pending = None

    def adapter(self, step: int) -> tidefast.Adapter:
        """A lone adapter that has seen the first so many steps; all of their answers are checked on the way."""
        adapter = serving.lone()
        assert serving.wrong_answers(adapter, self.steps[:step]) == 0, self.stream
        return adapter

    def check(self) -> None:
        self.adapter(len(self.steps))


def under_load(service: Running, clients: list[Client], during: Callable[[], Awaitable[Any]]) -> None:
    """All clients send without pause until `during` has ended the service, which refuses then, or is gone."""
    over = asyncio.Event()

    async def client(one: Client, number: int) -> None:
        size = 2 + number
        with contextlib.closing(Connection(service.port)) as connection:
            try:
                while True:
                    await one.send(connection, some(size))
                    size = 2 + (size + 3) % 9
            except (ConnectionError, RuntimeError) as error:
                if not over.is_set() or (isinstance(error, RuntimeError) and "'stopping'" not in str(error)):
                    raise

    async def main() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for number, one in enumerate(clients):
                tasks.create_task(client(one, number))
            await during()
            over.set()

    asyncio.run(main())


def feed(service: Running, *clients: Client, steps: int = 1, size: int = 6) -> None:
    """Some steps for each, one after the other."""

    async def main() -> None:
        with contextlib.closing(Connection(service.port)) as connection:
            for _ in range(steps):
                for one in clients:
                    await one.send(connection, some(size))

    asyncio.run(main())


def steps_in(client: httpx.Client) -> dict[str, int]:
    answer = client.get("/v1/streams")
    assert answer.status_code == 200, answer.text
    return {one["name"]: one["step"] for one in answer.json()}


def manifest(folder: Path) -> dict[str, int]:
    streams = json.loads((folder / "manifest.json").read_bytes())["streams"]
    return {name: about["step"] for name, about in streams.items()}


def newest(state: Path) -> Path:
    """The last snapshot that was finished."""
    return max(path for path in (state / "snapshots").iterdir() if not path.name.startswith("."))


# -- ends ----------------------------------------------------------------------------------------------------------


def test_kill_in_a_loop_under_load_loses_only_steps_since_the_last_snapshot(tmp_path):
    state = tmp_path / "state"
    clients: list[Client] = []
    safe: dict[str, int] = {}
    """Steps that were answered before a snapshot was asked for, which then was taken."""
    lost = 0
    for round_ in range(3):
        # In the last round the only snapshot is the one that is asked for: what comes later, only the journal knows.
        with serving.serving(state, *(PERIODIC if round_ < 2 else ON_DEMAND)) as service, service.client() as http:
            lost += come_back(http, state, clients, safe)
            clients.extend(Client(f"camera-{round_}-{number}") for number in range(2))

            async def snapshot_then_kill(service=service, round_=round_) -> None:
                with contextlib.closing(Connection(service.port)) as connection:
                    await asyncio.sleep(0.5)
                    safe.update((one.stream, len(one.steps)) for one in clients)
                    assert (await connection.ask("POST", "/v1/snapshots"))[0] == 201
                    clients.append(late := Client(f"late-{round_}"))
                    await late.send(connection, some(5))
                    await asyncio.sleep(0.1 + 0.15 * round_)  # sooner or later in the next snapshot
                    service.process.kill()

            under_load(service, list(clients), snapshot_then_kill)
        for one in clients:
            one.check()  # what is lost was answered rightly, too
    with serving.serving(state, *ON_DEMAND) as service, service.client() as http:
        assert not list((state / "snapshots").glob(".*"))
        lost += come_back(http, state, clients, safe)
        assert clients[-1].stream == "late-2"
        assert clients[-1].steps == []
        feed(service, *clients)
    for one in clients:
        one.check()
    assert len(clients) == 9
    assert lost > 0, "no kill came between a step and the next snapshot: the test has shown nothing"


def come_back(http: httpx.Client, state: Path, clients: list[Client], safe: dict[str, int]) -> int:
    """After a restart: every stream is there, at the last finished snapshot. How many answered steps are lost."""
    found, lost = steps_in(http), 0
    assert found == {one.stream: 0 for one in clients} | (manifest(newest(state)) if clients else {})
    for one in clients:
        assert found[one.stream] >= safe.get(one.stream, 0)
        lost += max(0, len(one.steps) - found[one.stream])
        one.go_back(found[one.stream])
        one.check()
    return lost


def test_sigterm_under_load_loses_nothing_that_was_answered(tmp_path):
    state = tmp_path / "state"
    clients = [Client(f"camera-{number}") for number in range(6)]
    with serving.serving(state, *ON_DEMAND) as service:

        async def terminate() -> None:
            while sum(len(one.steps) for one in clients) <= 20:  # however slow the machine is
                await asyncio.sleep(0.1)
            service.process.send_signal(signal.SIGTERM)

        under_load(service, clients, terminate)
        assert service.process.wait(30) == 0
    assert manifest(newest(state)) == {one.stream: len(one.steps) for one in clients}
    with serving.serving(state, *ON_DEMAND) as service:
        feed(service, *clients)
    for one in clients:
        one.check()


# -- disks ---------------------------------------------------------------------------------------------------------


def at_most(size: int) -> Callable[[], None]:
    """For a process that may write no file larger than that: as full as a disk can be without being one."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_full_disk_stops_snapshots_not_streams_and_space_brings_them_back(tmp_path):
    state = tmp_path / "state"
    old, new = Client("old"), Client("new")
    with serving.serving(state, *ON_DEMAND, prepare=at_most(16_000)) as service, service.client() as http:
        feed(service, old)
        for _ in range(2):
            answer = http.post("/v1/snapshots")
            assert (answer.status_code, answer.json()["reason"]) == (503, "storage")
            assert answer.headers["Retry-After"]
        assert http.get("/readyz").json()["problems"] == ["the last snapshot failed"]
        assert [one["kind"] for one in http.get("/v1/alarms").json()] == ["snapshots"]
        assert list((state / "snapshots").iterdir()) == []
        full = (state / "journal.jsonl").stat().st_size
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (full + 3, resource.RLIM_INFINITY))
        with pytest.raises(RuntimeError, match="storage"):  # it could be lost, so it does not begin
            feed(service, new)
        assert (state / "journal.jsonl").stat().st_size == full
        feed(service, old, steps=2)
        assert steps_in(http) == {"old": 3}
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        assert http.post("/v1/snapshots").status_code == 201
        assert http.get("/readyz").status_code == 200
        assert http.get("/v1/alarms").json() == []
        feed(service, new)
        service.kill()
    with serving.serving(state, *ON_DEMAND) as service, service.client() as http:
        assert steps_in(http) == {"old": 3, "new": 0}
        new.go_back(0)
        feed(service, old, new)
    old.check()
    new.check()


def test_a_disk_that_is_full_at_the_end_is_told_by_the_exit_code(tmp_path):
    state = tmp_path / "state"
    one = Client("x")
    with serving.serving(state, *ON_DEMAND, prepare=at_most(16_000)) as service:
        feed(service, one, steps=2)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(30) == 1
        assert "no snapshot could be taken" in service.log.read_text()
    assert list((state / "snapshots").iterdir()) == []


def as_anybody() -> None:
    """For a process that may write only where permissions say so, even as root."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: fails for whoever has none to drop


def test_an_unwritable_snapshot_folder_is_told_and_streams_go_on(tmp_path):
    state = tmp_path / "state"
    one = Client("x")
    with serving.serving(state, *PERIODIC, prepare=as_anybody) as service, service.client() as http:
        feed(service, one)
        assert http.post("/v1/snapshots").status_code == 201
        (state / "snapshots").chmod(0o555)
        try:
            feed(service, one)
            answer = http.post("/v1/snapshots")
            assert (answer.status_code, answer.json()["reason"]) == (503, "storage")
            assert "Permission denied" in answer.json()["detail"]
            assert str(tmp_path) not in answer.text
            feed(service, one)
            assert http.get("/readyz").status_code == 503
            assert http.get("/v1/snapshots").status_code == 200
        finally:
            (state / "snapshots").chmod(0o755)
        eventually(lambda: http.get("/readyz").status_code == 200)  # the next periodic one works
        service.kill()
    with serving.serving(state, *ON_DEMAND) as service, service.client() as http:
        assert steps_in(http) == {"x": 3}
        feed(service, one)
    one.check()
    closed = tmp_path / "closed"
    closed.mkdir(0o555)
    assert "Permission denied" in refusal_on(closed, as_anybody)


def eventually(true: Callable[[], bool], patience: float = 20.0) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- damage --------------------------------------------------------------------------------------------------------


def test_damaged_files_at_the_start_cost_their_own_stream_only(tmp_path):
    """The newest list of streams is cut off; in the one before, a stream is damaged here, another everywhere."""
    state = tmp_path / "state"
    flipped, gone, whole = clients = [Client("flipped"), Client("gone"), Client("whole")]
    with serving.serving(state, *ON_DEMAND) as service, service.client() as http:
        for _ in range(3):
            feed(service, *clients)
            assert http.post("/v1/snapshots").status_code == 201
        service.kill()
    first, second, third = sorted((state / "snapshots").iterdir())
    (third / "manifest.json").write_bytes((third / "manifest.json").read_bytes()[:-20])
    content = bytearray((second / file_name("flipped")).read_bytes())
    content[len(content) // 2] ^= 4
    (second / file_name("flipped")).write_bytes(content)
    for folder in (first, second):
        os.truncate(folder / file_name("gone"), 1000)
    with open(state / "journal.jsonl", "ab") as journal:
        journal.write(b'{"stream": "\\u0000", "dropped": null}\n{"stream": "x", "dropped": 1e999}\nrubbish\xff\n{"stre')
    with serving.serving(state, *ON_DEMAND) as service, service.client() as http:
        assert steps_in(http) == {"flipped": 1, "gone": 0, "whole": 2}
        said = service.log.read_text()
        assert "snapshot 000003" in said
        assert said.count("is damaged and goes on from an older snapshot") >= 3
        assert 'tidefast_events_total{what="damaged"}' in http.get("/metrics").text
        for one, step in ((flipped, 1), (gone, 0), (whole, 2)):
            one.go_back(step)
        answer = http.post("/v1/streams/flipped/rollback", json={"snapshot": "000002"})
        assert (answer.status_code, answer.json()["reason"]) == (409, "damaged")
        feed(service, *clients, steps=2)
    for one in clients:
        one.check()


# -- clocks --------------------------------------------------------------------------------------------------------

_CLOCK = """
import os, pathlib, time
_true, _jump = time.time, pathlib.Path(os.environ["JUMP"])
time.time = lambda: _true() + float(_jump.read_text())
time.time_ns = lambda: int(time.time() * 1e9)
"""


def test_jumps_of_the_clock_change_nothing_but_what_people_read(tmp_path, monkeypatch):
    """The service reads the wall clock where a file says how wrong it is; timeouts, waits and order do not use it."""
    (tmp_path / "sitecustomize.py").write_text(_CLOCK)
    jump = tmp_path / "jump"
    jump.write_text("0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("JUMP", str(jump))
    state = tmp_path / "state"
    one = Client("x")
    with serving.serving(state, *PERIODIC, "--timeout", "5", "--rate", "1000") as service, service.client() as http:
        seen = []
        for years in (0, 10, -20, 1):
            (tmp_path / "next").write_text(str(years * 365 * 86400))
            (tmp_path / "next").replace(jump)  # at once: whoever reads an empty file in between has no clock at all
            feed(service, one, steps=2)
            seen.append(http.get("/v1/streams/x").json()["lately"]["seen"] - time.time())
            before = newest(state).name if years else "000000"
            eventually(lambda before=before: any(path.name > before for path in (state / "snapshots").iterdir()))
        assert [round(late / (365 * 86400)) for late in seen] == [0, 10, -20, 1]  # the clock did jump
        assert http.get("/v1/alarms").json() == []
        assert [step["step"] for step in http.get("/v1/streams/x/history").json()] == list(range(1, 9))
        names = [snapshot["name"] for snapshot in http.get("/v1/snapshots").json()]
        assert names == sorted(names)
        assert http.post("/v1/snapshots").status_code == 201

        # While we are here: a state folder belongs to one process.
        assert "another process is running in" in refusal_on(state)
        feed(service, one)
        assert http.post("/v1/snapshots").status_code == 201
        service.kill()
    for age, path in enumerate(sorted((state / "snapshots").iterdir(), reverse=True)):
        for file in (path, *path.iterdir()):
            os.utime(file, (1e9 + 1e6 * age,) * 2)  # the newest seems the oldest
    with serving.serving(state, *ON_DEMAND) as service, service.client() as http:
        assert steps_in(http) == {"x": 9}
        feed(service, one)
    one.check()


def refusal_on(state: Path, prepare: Callable[[], None] | None = None) -> str:
    """The one line with which a service says that it cannot use a folder."""
    arguments = [Path(sys.executable).with_name("tidefast"), "serve", "--state", state, "--port", "0"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, preexec_fn=prepare)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


# -- clients -------------------------------------------------------------------------------------------------------


def test_clients_that_go_away_harm_nobody(tmp_path):
    state = tmp_path / "state"
    one = Client("steady")
    body = serving.npy(some(5))
    with (
        serving.serving(state, "--snapshot-every", "600", "--max-wait", "0.5", "--timeout", "3") as service,
        service.client() as http,
    ):

        def part(stream: str, size: int) -> socket.socket:
            """A client that has sent a request up to there."""
            raw = socket.create_connection(("127.0.0.1", service.port))
            raw.sendall((serving.head("POST", serving.path_of(stream), len(body)) + body)[: size or None])
            return raw

        for number in range(20):  # in the middle of the head, of the body, of the last byte
            raw = part("half", (10, 300, 3000, len(body))[number % 4])
            if number % 2:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            raw.close()
        slow = part("half", 3000)  # says no more, and stays
        feed(service, one)

        ghost = part("shared", 0)  # all of it, and gone before the answer
        eventually(lambda: "tidefast_queue_images 5.0" in http.get("/metrics").text)
        ghost.close()
        levels = some(4)
        answer = asyncio.run(adapt_once(service, "shared", levels))
        assert (answer.said["step"], answer.said["batch"]) == (1, {"size": 9, "offset": 5})
        sent = np.load(io.BytesIO(body))
        expected = serving.lone()(serving.as_tensor(np.concatenate([sent, levels])))
        assert serving.same_bits(answer.logits, expected[5:])

        slow.settimeout(20)
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")
        slow.close()
        feed(service, one)
        assert http.get("/v1/streams/half").status_code == 404
        numbers = http.get("/metrics").text
        assert "tidefast_queue_images 0.0" in numbers
        assert steps_in(http) == {"shared": 1, "steady": 2}
        assert "Traceback" not in service.log.read_text()
    one.check()


async def adapt_once(service: Running, stream: str, levels: Levels) -> Answer:
    with contextlib.closing(Connection(service.port)) as connection:
        return await serving.adapt(connection, stream, levels)
