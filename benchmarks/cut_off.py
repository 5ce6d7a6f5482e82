"""A cluster of three nodes in network namespaces, one of which is cut off: is any stream advanced by two writers?

sudo python benchmarks/cut_off.py            # needs root and `ip`; some three minutes
sudo python benchmarks/cut_off.py --unfenced # the same with partitions that take themselves for the holders for ever

Each node is a network namespace with a Ray node and a front in it; all see the same state folder, on this machine's
disk, also the one that is cut off: it can reach no other node any more, while clients reach it, and the others. Every
stream has two clients that send without pause, one at the head's front and one at the front of the node that will be
cut off. Afterwards all answers of a stream must make one line, in real time: an answer that had arrived before another
request was sent has a lower step, and no place in a step is answered twice. The line may go back once, when the
partition is taken over, and never again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from serving import OPTIONS, TOKEN, Connection, Levels, npy, path_of, pictures

from tidefast.serve.cluster.joining import NODE
from tidefast.serve.cluster.layout import partition_of

NETWORK = "10.77.0"
BRIDGE = "tidefast0"
NODES = (1, 2, 3)
CUT = 3
HEAD = ["--head", "--port=6379", "--include-dashboard=false"]
PARTITIONS = 3
PORT = 8000
STREAMS = [f"camera-{number}" for number in (0, 1, 2, 7, 8, 10)]  # two for each partition
BIN = Path(sys.executable).parent
UNFENCED = """
import sys, threading, time

def patch():
    while "tidefast.serve.cluster.tenure" not in sys.modules or not hasattr(
        sys.modules["tidefast.serve.cluster.tenure"], "Tenure"
    ):
        time.sleep(0.05)
    sys.modules["tidefast.serve.cluster.tenure"].Tenure.holds = lambda self: True
    sys.modules["tidefast.serve.cluster.tenure"].Tenure.look = lambda self: True

threading.Thread(target=patch, daemon=True).start()
"""


def run(*command: str, check: bool = True) -> None:
    """A command that has nothing to say when all is well."""
    subprocess.run(command, check=check, stdout=subprocess.DEVNULL, stderr=None if check else subprocess.DEVNULL)


def space(node: int) -> str:
    """The name of a node's namespace."""
    return f"tidefast-{node}"


def address(node: int) -> str:
    """Of a node, as the others and the clients reach it."""
    return f"{NETWORK}.{node}"


@contextlib.contextmanager
def network() -> Iterator[None]:
    """A namespace for each node, all on one bridge, which this machine is on too."""
    try:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for node in NODES:
            run("ip", "netns", "add", space(node))
            run("ip", "link", "add", f"tf{node}", "type", "veth", "peer", "name", "eth0", "netns", space(node))
            run("ip", "link", "set", f"tf{node}", "master", BRIDGE, "up")
            run("ip", "-n", space(node), "addr", "add", f"{address(node)}/24", "dev", "eth0")
            run("ip", "-n", space(node), "link", "set", "eth0", "up")
            run("ip", "-n", space(node), "link", "set", "lo", "up")
        yield
    finally:
        for node in NODES:
            run("ip", "netns", "del", space(node), check=False)
        run("ip", "link", "del", BRIDGE, check=False)


def cut_off(node: int) -> None:
    """From now on the node sends nothing to the others; clients still reach it."""
    for other in NODES:
        if other != node:
            run("ip", "-n", space(node), "route", "add", "blackhole", f"{address(other)}/32")


def started(node: int, folder: Path, environment: dict[str, str], *command: str) -> subprocess.Popen[bytes]:
    """A process in a node's namespace."""
    log = open(folder / f"{Path(command[0]).name}-{node}.log", "ab")  # noqa: SIM115  # as long as the process
    return subprocess.Popen(
        ["ip", "netns", "exec", space(node), *command],
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={**os.environ, **environment, NODE: address(node), "TIDEFAST_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"},
    )


@contextlib.contextmanager
def cluster(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Ray and a front on each node."""
    processes: list[subprocess.Popen[bytes]] = []
    health = {f"RAY_health_check_{key}": value for key, value in HEALTH.items()}
    environment = {**environment, **health, "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # one for this cluster alone
    try:
        for node in NODES:
            where = (
                ["--head", "--port=6379", "--include-dashboard=false"]
                if node == NODES[0]
                else [f"--address={address(NODES[0])}:6379"]
            )
            options = [f"--node-ip-address={address(node)}", "--num-cpus=1", f"--temp-dir={folder}/ray-{node}"]
            processes.append(started(node, folder, environment, f"{BIN}/ray", "start", "--block", *where, *options))
            time.sleep(8.0 if node == NODES[0] else 2.0)
        for node in NODES:
            options = ["--cluster", f"{address(NODES[0])}:6379", "--partitions", str(PARTITIONS), "--lease", "5"]
            options += ["--host", "0.0.0.0", "--port", str(PORT), "--state", str(folder / "state")]
            options += ["--snapshot-every", "2", "--max-wait", "0", "--timeout", "5"]
            processes.append(started(node, folder, environment, f"{BIN}/tidefast", "serve", *OPTIONS, *options))
        yield
    finally:
        for process in reversed(processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
        for node in NODES:  # what has left its group: everything that still runs in the namespace
            listed = subprocess.run(["ip", "netns", "pids", space(node)], capture_output=True, text=True, check=False)
            for pid in listed.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


HEALTH = {"initial_delay_ms": "2000", "period_ms": "1000", "timeout_ms": "2000", "failure_threshold": "3"}
"""So that Ray gives a silent node up after some seconds."""


@dataclass(frozen=True)
class Event:
    """One request and its answer."""

    stream: str
    front: int
    sent: float
    arrived: float
    step: int | None
    offset: int = 0
    """Of its images in the step: requests that wait together make one."""
    reason: str = ""


async def client(stream: str, front: int, shown: Levels, events: list[Event], over: asyncio.Event) -> None:
    """Sends until it is over."""
    connection, place = Connection(PORT, address(front)), 0
    while not over.is_set():
        place = (place + 5) % (len(shown) - 4)
        sent = time.monotonic()
        try:
            async with asyncio.timeout(10.0):
                status, said = await connection.ask("POST", path_of(stream), npy(shown[place : place + 4]))
        except (ConnectionError, TimeoutError):
            connection.close()
            status, said = 0, {"reason": "connection"}
        step = said["step"] if status == 200 else None
        offset = said["batch"]["offset"] if status == 200 else 0
        events.append(Event(stream, front, sent, time.monotonic(), step, offset, said.get("reason", "")))
        if step is None:
            await asyncio.sleep(0.2)
    connection.close()


def lines(events: list[Event]) -> tuple[int, list[str]]:
    """How often a stream went back, and every answer that contradicts one writer."""
    backward, contradictions = 0, []
    for stream in STREAMS:
        answered = sorted((one for one in events if one.stream == stream and one.step), key=lambda one: one.arrived)
        highest, returned, since = 0, False, -1.0
        for one in answered:
            assert one.step is not None
            before = [other for other in answered if since <= other.arrived < one.sent]
            highest = max((other.step or 0 for other in before), default=0)
            seen = {(other.step, other.offset) for other in answered if since <= other.arrived < one.arrived}
            if one.step <= highest or (one.step, one.offset) in seen:
                if returned:
                    contradictions.append(f"{stream}: step {one.step} by front {one.front} after step {highest}")
                    continue
                returned, since, backward = True, one.arrived, backward + 1
    return backward, contradictions


async def watched(seconds: float, fronts: tuple[int, ...], folder: Path) -> tuple[list[Event], float]:
    """All answers of all clients around the cut, and when that was."""
    events: list[Event] = []
    over = asyncio.Event()
    shown = pictures(256)
    async with asyncio.TaskGroup() as tasks:
        for stream in STREAMS:
            for front in fronts:
                tasks.create_task(client(stream, front, shown, events, over))
        await asyncio.sleep(10.0)
        cut = time.monotonic()
        cut_off(CUT)
        await asyncio.sleep(seconds)
        over.set()
    return events, cut


def partitions(front: int) -> list[dict[str, Any]]:
    """As the front of a node knows them."""
    try:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        found: list[dict[str, Any]] = httpx.get(
            f"http://{address(front)}:{PORT}/v1/info", headers=headers, timeout=20
        ).json()["partitions"]
        return found
    except httpx.HTTPError:
        return []


def wait_for_all() -> list[dict[str, Any]]:
    """Until every partition serves on a node of its own, and every front says so."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        views = [partitions(node) for node in NODES]
        serve = all(view and {one["phase"] for one in view} == {"serving"} for view in views)
        if serve and len({one["node"] for one in views[0]}) == len(NODES):
            return views[0]
        time.sleep(2.0)
    raise SystemExit(f"the cluster did not come up: {views}")


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="after the cut")
    parser.add_argument("--unfenced", action="store_true", help="switch the fence off: there must be two writers")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cut-off-", dir="/tmp"))
    environment = {}
    if options.unfenced:
        (folder / "sitecustomize.py").write_text(UNFENCED)
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    with network(), cluster(folder, environment):
        before = wait_for_all()
        events, cut = asyncio.run(watched(options.seconds, (NODES[0], CUT), folder))
        after = partitions(NODES[0])
    report(events, cut, before, after)
    shutil.rmtree(folder, ignore_errors=True)


def report(events: list[Event], cut: float, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """What happened."""
    moved = [index for index, one in enumerate(before) if after and after[index]["term"] != one["term"]]
    backward, contradictions = lines(events)
    print(f"partitions with a new term after the cut: {moved} of {PARTITIONS}; streams by partition: ", end="")
    print(dict(Counter(partition_of(name, PARTITIONS) for name in STREAMS)))
    print("\n| front | answers before the cut | after it | refused after it, by reason |\n| --- | ---: | ---: | --- |")
    for front in (NODES[0], CUT):
        own = [one for one in events if one.front == front]
        early = sum(one.step is not None for one in own if one.arrived < cut)
        late = [one for one in own if one.arrived >= cut]
        reasons = Counter(one.reason for one in late if one.step is None)
        name = "the head's" if front == NODES[0] else "of the node that is cut off"
        print(f"| {name} | {early} | {sum(one.step is not None for one in late)} | {dict(reasons)} |")
    hurt = [one for one in events if partition_of(one.stream, PARTITIONS) in moved and one.step is not None]
    old = max((one.arrived - cut for one in hurt if one.front == CUT and one.arrived >= cut), default=0.0)
    new = min((one.arrived - cut for one in hurt if one.front == NODES[0] and one.sent >= cut), default=float("nan"))
    print(f"\nof partitions that were taken over: last answer by the cut-off front {old:.1f} s after the cut, ", end="")
    print(f"first by the head's {new:.1f} s after it")
    print(f"streams that went back once, to a snapshot: {backward}")
    print(f"answers that contradict one writer: {len(contradictions)}", *contradictions[:5], sep="\n")


if __name__ == "__main__":
    main()
