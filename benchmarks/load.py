"""The service under load: many streams, ragged batches, bad requests; speed, latency, and every answer checked.

python benchmarks/load.py                    # the tables of docs/production.md, some five minutes
python benchmarks/load.py --rounds 2 --streams 16

In each round the service gets its requests over loopback, then lone adapters in this process get the very batches that
the service made of them, with as many threads of torch: that is the bare loop, and what the answers are compared with.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from serving import NPY, TOKEN, Answer, Connection, Levels, adapt, lone, npy, path_of, pictures, serving, steps_of

import tidefast
from tidefast.streams import as_tensor

MAX_BODY = 500_000
LARGEST = 17
"""Images of a request."""


@dataclass(frozen=True)
class Bad:
    """A request that must be refused, and how."""

    body: bytes
    status: int
    reason: str
    kind: str = NPY
    token: str | None = TOKEN


BAD = (
    Bad(b"garbage", 400, "malformed"),
    Bad(b"\x89PNG garbage", 400, "malformed", kind="image/png"),
    Bad(npy(np.zeros((2, 32, 32, 3), np.uint8))[:-1], 400, "malformed"),
    Bad(npy(np.zeros((2, 3, 32, 32), np.float32)), 401, "unauthorized", token=None),
    Bad(npy(np.zeros((2, 32, 32, 3), np.uint8)), 401, "unauthorized", token="a-token-that-is-wrong"),
    Bad(bytes(MAX_BODY + 1), 413, "too_large"),
    Bad(npy(np.zeros((65, 32, 32, 3), np.uint8)), 413, "too_large"),
    Bad(b"{}", 415, "unsupported", kind="application/json"),
    Bad(npy(np.zeros((2, 16, 16, 3), np.uint8)), 422, "unfit"),
    Bad(npy(np.zeros((2, 32, 32, 3), np.float64)), 422, "unfit"),
)
Order = Bad | Levels
"""Something to send."""


@dataclass
class Outcome:
    """What came of one round, or of several."""

    answers: list[Answer] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    surprises: list[str] = field(default_factory=list)
    """Good requests that were refused, and bad ones that were not, or for another reason."""
    seconds: float = 0.0

    @property
    def images(self) -> int:
        """Answered."""
        return sum(len(answer.levels) for answer in self.answers)


def orders(streams: int, requests: int, share_bad: float, seed: int) -> dict[str, deque[Order]]:
    """For each stream its requests of 1 to 17 images, with bad ones among them."""
    chance = random.Random(seed)
    sizes = [[chance.randint(1, LARGEST) for _ in range(requests)] for _ in range(streams)]
    shown = pictures(4096, seed)
    made: dict[str, deque[Order]] = {}
    for number, own in enumerate(sizes):
        place = chance.randrange(len(shown))
        queue: deque[Order] = deque()
        for size in own:
            if chance.random() < share_bad:
                queue.append(chance.choice(BAD))
            queue.append(np.take(shown, range(place, place + size), axis=0, mode="wrap"))
            place += size
        made[f"camera-{number}"] = queue
    return made


async def send(connection: Connection, stream: str, order: Order, outcome: Outcome) -> None:
    """One request, and what came of it."""
    if isinstance(order, Bad):
        status, said = await connection.ask("POST", path_of(stream), order.body, kind=order.kind, token=order.token)
        outcome.refused[said.get("reason", "none")] += 1
        if (status, said.get("reason")) != (order.status, order.reason):
            outcome.surprises.append(f"{order.status} {order.reason} was to come, {status} came: {str(said)[:200]}")
        return
    try:
        outcome.answers.append(await adapt(connection, stream, order))
    except RuntimeError as error:
        outcome.surprises.append(str(error))


async def crowded(port: int, todo: dict[str, deque[Order]], connections: int) -> Outcome:
    """Several connections for each stream, each sending again as soon as it has its answer."""
    outcome = Outcome()

    async def client(stream: str, queue: deque[Order]) -> None:
        connection = Connection(port)
        while queue:
            await send(connection, stream, queue.popleft(), outcome)
        connection.close()

    started = time.perf_counter()
    await asyncio.gather(*(client(stream, todo[stream]) for stream in todo for _ in range(connections)))
    outcome.seconds = time.perf_counter() - started
    return outcome


async def paced(port: int, todo: dict[str, deque[Order]], images_a_second: float, seed: int = 0) -> Outcome:
    """Requests at random moments, so many images a second on average, whether or not there were answers."""
    outcome, chance = Outcome(), random.Random(seed)
    free: list[Connection] = []

    async def client(stream: str, order: Order) -> None:
        connection = free.pop() if free else Connection(port)
        await send(connection, stream, order, outcome)
        free.append(connection)

    started = due = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        waiting = [(stream, queue) for stream, queue in todo.items() for _ in queue]
        chance.shuffle(waiting)
        for stream, queue in waiting:
            order = queue.popleft()
            tasks.create_task(client(stream, order))
            images = 0 if isinstance(order, Bad) else (1 + LARGEST) / 2
            due += chance.expovariate(1.0) * images / images_a_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
    outcome.seconds = time.perf_counter() - started
    for connection in free:
        connection.close()
    return outcome


@dataclass
class Row:
    """One line of the table."""

    load: str
    paced: bool = False
    """Then its speed is that of the requests, and says nothing of the service."""
    rounds: list[Outcome] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    """Seconds of the bare loop."""
    steps: int = 0
    wrong: int = 0

    def compare(self, outcome: Outcome, adapters: dict[str, tidefast.Adapter]) -> None:
        """Run the bare loop over the batches that the service made, and compare every answer."""
        found = steps_of(outcome.answers)
        ready = {name: [as_tensor(step.levels) for step in steps] for name, steps in found.items()}
        seconds, given = 0.0, {}
        for name, batches in ready.items():
            adapter = adapters.get(name) or adapters.setdefault(name, lone())
            started = time.perf_counter()
            given[name] = [adapter(batch) for batch in batches]
            seconds += time.perf_counter() - started
            assert adapter.step == found[name][-1].number, "steps are missing"
        for name, steps in found.items():
            for step, logits in zip(steps, given[name], strict=True):
                self.wrong += int((logits.view(torch.int32) != step.logits.view(torch.int32)).any(1).sum())
        self.rounds.append(outcome)
        self.bare.append(seconds)
        self.steps += sum(map(len, found.values()))

    def text(self) -> str:
        """As Markdown."""
        images = [one.images for one in self.rounds]
        served = sum(images) / sum(one.seconds for one in self.rounds)
        bare = sum(images) / sum(self.bare)
        ratios = sorted(alone / one.seconds for one, alone in zip(self.rounds, self.bare, strict=True))
        latency = np.percentile([1000 * answer.seconds for one in self.rounds for answer in one.answers], [50, 99])
        cells = [
            self.load,
            f"{sum(images)}",
            f"{sum(images) / self.steps:.1f}",
            f"{served:.0f}",
            f"{bare:.0f}",
            "" if self.paced else f"{served / bare:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            f"{latency[0]:.0f}",
            f"{latency[1]:.0f}",
            f"{self.wrong}",
        ]
        return f"| {' | '.join(cells)} |"


TITLE = (
    "| load | images | images a step | service, images/s | bare loop, images/s | ratio (of the rounds) | p50, ms | "
    "p99, ms | wrong answers |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def measured(
    state: Path, streams: int, requests: int, rounds: int, connections: Sequence[int], bad: float, workers: int
) -> None:
    """Measure, and print the tables."""
    torch.set_num_threads(1)
    adapters: dict[str, tidefast.Adapter] = {}
    rows: list[Row] = []
    with serving(state, "--max-body", str(MAX_BODY), "--workers", str(workers)) as service:
        seed = 0
        for each in connections:
            rows.append(row := Row(f"{streams} streams, {each} connection{'s' * (each > 1)} each, as fast as it can"))
            for _ in range(rounds):
                seed += 1
                todo = orders(streams, requests, bad, seed)
                row.compare(asyncio.run(crowded(service.port, todo, each)), adapters)
        speed = sum(one.images for one in rows[-1].rounds) / sum(one.seconds for one in rows[-1].rounds)
        for share in (0.25, 0.5):
            rows.append(row := Row(f"{streams} streams, at random moments, {share:.0%} of that", paced=True))
            for _ in range(max(1, rounds // 2)):
                seed += 1
                todo = orders(streams, max(1, int(share * requests)), bad, seed)
                row.compare(asyncio.run(paced(service.port, todo, share * speed, seed)), adapters)
        with service.client() as client:
            numbers = client.get("/metrics").text
    print(
        f"{rounds} rounds of {requests} requests of 1 to {LARGEST} images a stream; the service has {workers} "
        f"worker(s), each with {torch.get_num_threads()} thread of torch, like the bare loop\n"
    )
    print(TITLE, *(row.text() for row in rows), sep="\n")
    outcomes = [one for row in rows for one in row.rounds]
    refused = sum((one.refused for one in outcomes), Counter[str]())
    counted = {reason: f'tidefast_rejected_total{{reason="{reason}"}} {float(refused[reason])}' for reason in refused}
    print("\n| refused because | requests | /metrics agrees |\n| --- | ---: | --- |")
    for reason, count in sorted(refused.items()):
        print(f"| {reason} | {count} | {'yes' if counted[reason] in numbers else 'no'} |")
    surprises = [surprise for one in outcomes for surprise in one.surprises]
    print(f"\nsurprises: {len(surprises)}", *surprises[:5], sep="\n")


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=8, help="of each stream in a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4], help="of each stream")
    parser.add_argument("--bad", type=float, default=0.05, help="share of bad requests")
    parser.add_argument("--workers", type=int, default=1, help="of the service; the bare loop has one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        measured(state, **vars(options))


if __name__ == "__main__":
    main()
