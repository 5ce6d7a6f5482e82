"""The service under load with and without `--together`: images per second, latency, and every answer checked.

    python benchmarks/load_together.py                      # the table of docs/production.md, some five minutes
    python benchmarks/load_together.py --together 16 64 --rounds 3

A service without the option and one for each N get the same requests by turns, each client sending again as soon as it
has its answer; the others idle meanwhile. Lone adapters in this process then get the batches that a service made.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from serving import Answer, Connection, Levels, Running, adapt, lone, pictures, serving, steps_of

from tidefast.streams import as_tensor


async def crowded(port: int, shown: dict[str, list[Levels]]) -> tuple[float, list[Answer]]:
    """Seconds, and the answers, when each stream has one client."""
    answers: list[Answer] = []

    async def client(stream: str) -> None:
        connection = Connection(port)
        for levels in shown[stream]:
            answers.append(await adapt(connection, stream, levels))
        connection.close()

    started = time.perf_counter()
    await asyncio.gather(*map(client, shown))
    return time.perf_counter() - started, answers


def processor_seconds(service: Running) -> float:
    """That the service's process has had so far, by /proc."""
    fields = Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def largest_difference(answers: list[Answer], gather: int) -> float:
    """Between the answers and those of lone adapters, as a share of the largest logit of a stream."""
    largest = 0.0
    for steps in steps_of(answers).values():
        adapter = lone(gather=gather)
        given = torch.cat([adapter(as_tensor(step.levels)) for step in steps])
        difference = (given - torch.cat([step.logits for step in steps])).abs().max() / given.abs().max()
        largest = max(largest, float(difference))
    return largest


def measured(streams: int, size: int, requests: int, rounds: int, together: list[int], gather: int) -> None:
    """Measure, and print a table."""
    names = [f"camera-{number}" for number in range(streams)]
    seconds: dict[int, list[float]] = {}
    spent: dict[int, list[float]] = {}
    answers: dict[int, list[Answer]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        services: dict[int, Running] = {
            most: stack.enter_context(
                serving(Path(folder) / str(most), "--gather", str(gather), "--together", str(most))
            )
            for most in [1, *together]
        }
        for turn in range(rounds + 1):  # the first warms up, and counts for the answers only
            images = np.array_split(pictures(streams * requests * size, turn), streams)
            shown = {name: np.split(own, requests) for name, own in zip(names, images, strict=True)}
            for most, service in services.items():
                before = processor_seconds(service)
                took, given = asyncio.run(crowded(service.port, shown))
                answers.setdefault(most, []).extend(given)
                if turn:
                    seconds.setdefault(most, []).append(took)
                    spent.setdefault(most, []).append(processor_seconds(service) - before)
    print(
        f"\n{streams} clients, {requests} requests of {size} images each, median of {rounds} rounds; "
        f"batches of fewer than {gather} images are gathered\n"
    )
    print(
        "| --together | images/s | against 1 (of the rounds) | ms of the processor an image | against 1 | p50, ms | "
        "p99, ms | largest difference |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for most, took in seconds.items():
        speed = streams * requests * size / statistics.median(took)
        ratios = sorted(one / own for one, own in zip(seconds[1], took, strict=True))
        warm = answers[most][streams * requests :]
        latency = np.percentile([1000 * answer.seconds for answer in warm], [50, 99])
        cells = [
            f"{most}",
            f"{speed:.0f}",
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            f"{1000 * statistics.median(spent[most]) / (streams * requests * size):.2f}",
            f"{statistics.median(one / own for one, own in zip(spent[1], spent[most], strict=True)):.2f}",
            f"{latency[0]:.0f}",
            f"{latency[1]:.0f}",
            f"{largest_difference(answers[most], gather):.0e}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--size", type=int, default=4, help="images of a request")
    parser.add_argument("--requests", type=int, default=8, help="of each stream in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--together", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--gather", type=int, nargs="+", default=[4, 16], help="4: 4 images are a step")
    options = vars(parser.parse_args())
    torch.set_num_threads(1)
    for gather in options.pop("gather"):
        measured(**options, gather=gather)


if __name__ == "__main__":
    main()
