"""The service on a cluster of this machine against the single process: images per second, and every answer checked.

python benchmarks/cluster.py                    # the table of docs/cluster.md, some five minutes
python benchmarks/cluster.py --rounds 2 --streams 16

All services run at the same time, and take turns: each round sends the same requests to one after the other, and then
lone adapters get the very batches that each made of them. A service that waits costs next to nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from load import Row, crowded, orders
from serving import Running, serving

import tidefast

SERVICES: dict[str, Sequence[str]] = {
    "one process, 1 worker": (),
    "one process, 2 workers": ("--workers", "2"),
    "cluster, 1 partition": ("--cluster", "--partitions", "1"),
    "cluster, 2 partitions": ("--cluster", "--partitions", "2"),
}


def measured(folder: Path, streams: int, requests: int, rounds: int, connections: int) -> None:
    """Measure, and print the table."""
    torch.set_num_threads(1)
    rows = {name: Row(name) for name in SERVICES}
    adapters: dict[str, dict[str, tidefast.Adapter]] = {name: {} for name in SERVICES}
    with contextlib.ExitStack() as running:
        services: dict[str, Running] = {}
        for number, (name, options) in enumerate(SERVICES.items()):
            services[name] = running.enter_context(serving(folder / str(number), *options))
        for seed in range(1, rounds + 1):
            for name, service in services.items():
                todo = orders(streams, requests, 0.0, seed)
                rows[name].compare(asyncio.run(crowded(service.port, todo, connections)), adapters[name])
        for service in services.values():  # an end by SIGTERM, so that no Ray is left behind
            service.process.terminate()
            service.process.wait(120)
    print(
        f"{rounds} rounds of {requests} requests for each of {streams} streams, {connections} connections each; "
        "one thread of torch for each worker\n"
    )
    print("| service | images | images a step | images/s | of one process (of the rounds) | p50, ms | wrong answers |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    alone = next(iter(rows.values()))
    for row in rows.values():
        images = sum(one.images for one in row.rounds)
        seconds = [one.seconds for one in row.rounds]
        ratios = sorted(base.seconds / one for base, one in zip(alone.rounds, seconds, strict=True))
        ratio = sum(base.seconds for base in alone.rounds) / sum(seconds)
        latency = np.median([1000 * answer.seconds for one in row.rounds for answer in one.answers])
        surprises = [surprise for one in row.rounds for surprise in one.surprises]
        assert not surprises, surprises[:3]
        print(
            f"| {row.load} | {images} | {images / row.steps:.1f} | {images / sum(seconds):.0f} | "
            f"{ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {latency:.0f} | {row.wrong} |"
        )


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--requests", type=int, default=8, help="of each stream in a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--connections", type=int, default=4, help="of each stream")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured(Path(folder), **vars(options))


if __name__ == "__main__":
    main()
