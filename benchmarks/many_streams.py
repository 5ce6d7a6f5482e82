"""A real `tidefast serve` with thousands of streams: memory, metrics, status, snapshots and a restart, as they grow.

    python benchmarks/many_streams.py --streams 1000 10000 --resident 1024

Each stream takes one step of a few images (bundled-resnet, ETA + ASR, one thread). Processor time is the service's own,
so that other work on the machine matters little; seconds of a snapshot include the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import serving

IMAGES = 4
CONNECTIONS = 4


@dataclass(frozen=True)
class Cost:
    """What something cost a process: seconds by the clock, and of its processor."""

    clock: float
    processor: float


@dataclass(frozen=True)
class Scale:
    """A service with so many streams."""

    streams: int
    resident: int
    memory: int
    """Bytes, resident set."""
    step: Cost
    """Of a request that begins a stream, on average."""
    scrape: Cost
    metrics_bytes: int
    metrics_lines: int
    listed: Cost
    """A page of 50 streams, those first that need attention, as the live page asks for."""
    status: Cost
    first_snapshot: Cost
    snapshot_bytes: int
    """Of the files of one snapshot."""
    idle_snapshot: Cost
    """Asked for with nothing changed."""
    small_snapshot: Cost
    """After one stream in a hundred took a step."""
    written: int
    """Bytes of files that the last one did not share with the one before."""
    restart: Cost


class Watched:
    """A service, with a meter at its process."""

    def __init__(self, running: serving.Running) -> None:
        self.running = running
        self.client = running.client()
        self.client.timeout = 600

    def processor(self) -> float:
        """Seconds of the processor so far, threads included."""
        fields = Path(f"/proc/{self.running.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes that the process holds now."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.running.process.pid}/status").read_text())
        assert found is not None
        return 1024 * int(found[1])

    def ask(self, verb: str, path: str, times: int = 1) -> tuple[Any, Cost]:
        """The answer, and what one cost."""
        clock, processor = time.perf_counter(), self.processor()
        for _ in range(times):
            answer = self.client.request(verb, path)
            answer.raise_for_status()
        cost = Cost((time.perf_counter() - clock) / times, (self.processor() - processor) / times)
        return answer, cost

    def adapt(self, names: list[str]) -> Cost:
        """One step of each of these streams, over a few connections; what one cost."""
        body = serving.npy(serving.pictures(IMAGES))
        waiting = iter(names)

        async def work() -> None:
            connection = serving.Connection(self.running.port)
            for name in waiting:
                status, said = await connection.ask("POST", f"/v1/streams/{name}/adapt", body)
                if status != 200:
                    raise RuntimeError(f"{status}: {said}")
            connection.close()

        async def all_of_them() -> None:
            await asyncio.gather(*(work() for _ in range(CONNECTIONS)))

        clock, processor = time.perf_counter(), self.processor()
        asyncio.run(all_of_them())
        return Cost((time.perf_counter() - clock) / len(names), (self.processor() - processor) / len(names))


def measured(folder: Path, counts: list[int], resident: int) -> list[Scale]:
    """One service that grows."""
    state = folder / "state"
    options = ("--max-streams", str(max(counts)), "--resident", str(resident), "--gather", "1", "--max-wait", "0")
    more = (*options, "--snapshot-every", "100000", "--keep", "3", "--timeout", "600")
    found, before = [], 0
    with serving.serving(state, *more) as running:
        watched = Watched(running)
        for count in counts:
            step = watched.adapt([f"camera-{number:06d}" for number in range(before, count)])
            found.append((count, step, _read(watched, state, count)))
            before = count
        start = time.perf_counter()
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(600)
    with serving.serving(state, *more) as running:
        again = Watched(running)
        again.ask("GET", "/readyz")
        restart = Cost(time.perf_counter() - start, again.processor())
        assert again.client.get("/v1/info").json()["streams"] == max(counts)
    last = len(found) - 1
    return [
        Scale(count, resident, step=step, restart=restart if at == last else Cost(0, 0), **read)
        for at, (count, step, read) in enumerate(found)
    ]


def _read(watched: Watched, state: Path, count: int) -> dict[str, Any]:
    page, scrape = watched.ask("GET", "/metrics", 3)
    _, listed = watched.ask("GET", "/v1/streams?order=attention&limit=50", 5)
    _, status = watched.ask("GET", "/v1/streams/camera-000000", 20)
    _, first = watched.ask("POST", "/v1/snapshots")
    _, idle = watched.ask("POST", "/v1/snapshots")
    watched.adapt([f"camera-{number:06d}" for number in range(0, count, 100)])
    _, small = watched.ask("POST", "/v1/snapshots")
    newest = max((state / "snapshots").iterdir())
    files = [file.stat() for file in newest.iterdir()]
    return {
        "memory": watched.memory(),
        "scrape": scrape,
        "metrics_bytes": len(page.content),
        "metrics_lines": page.text.count("\n"),
        "listed": listed,
        "status": status,
        "first_snapshot": first,
        "snapshot_bytes": sum(file.st_size for file in files),
        "idle_snapshot": idle,
        "small_snapshot": small,
        "written": sum(file.st_size for file in files if file.st_nlink == 1 or file.st_mtime >= newest.stat().st_ctime),
    }


def table(scales: list[Scale]) -> str:
    """In Markdown; seconds by the clock, in brackets of the processor."""

    def shown(cost: Cost, unit: float = 1.0) -> str:
        return f"{cost.clock * unit:.3g} ({cost.processor * unit:.3g})" if cost.clock else ""

    lines = [
        "| streams | in memory | memory, MB | request, ms | /metrics, ms | kB | page of 50, ms | status, ms "
        "| first snapshot, s | MB | unchanged, s | 1 % changed, s | restart, s |",
        "|" + " ---: |" * 13,
    ]
    lines += [
        f"| {one.streams:,} | {one.resident:,} | {one.memory / 1e6:.0f} | {shown(one.step, 1e3)} "
        f"| {shown(one.scrape, 1e3)} | {one.metrics_bytes / 1e3:.0f} | {shown(one.listed, 1e3)} "
        f"| {shown(one.status, 1e3)} | {shown(one.first_snapshot)} | {one.snapshot_bytes / 1e6:.1f} "
        f"| {shown(one.idle_snapshot)} | {shown(one.small_snapshot)} | {shown(one.restart)} |"
        for one in scales
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print; with --out, also as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1000, 10_000], help="(default 1000 10000)")
    parser.add_argument("--resident", type=int, nargs="+", default=[1024, 10_000], help="(default 1024 10000)")
    parser.add_argument("--out", type=Path, help="a file for the numbers")
    options = parser.parse_args()
    found = []
    for resident in options.resident:
        folder = Path(tempfile.mkdtemp(prefix="tidefast-many-"))
        try:
            found += measured(folder, sorted(options.streams), resident)
        finally:
            shutil.rmtree(folder)
        print(table(found), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
