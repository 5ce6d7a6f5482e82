"""Streams stepped together and one by one: `fleet.adapt` against `fleet[name](images)`.

    python benchmarks/fleet.py                       # the tables of docs/performance.md, some five minutes
    python benchmarks/fleet.py --networks bundled-vit --pairs eta+asr --sizes 4
    python benchmarks/fleet.py --memory default      # in a process as torch finds it

Two fleets get the same images, the one all streams in one call, the other one stream after the other, by turns in one
process with one thread of torch; seconds are those of the processor, and a ratio is of the medians. "1" are single
images, which are answered in the company of those before and make a step when `window` of them are there. The process
keeps its memory, as those of the commands and the service do. Answers are compared: the last column is the largest
difference, as a share of the largest logit.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable

import torch

import tidefast
from tidefast import methods, models, streams

OPTIMIZER = "sgd:lr=2.5e-4,momentum=0.9,nesterov=true"


def made(network: str, pair: str) -> tidefast.Fleet:
    """A fleet of `method` or `method+policy` in which every sample is selected."""
    name, _, policy = pair.partition("+")
    kind = methods.base.registry.get(name)
    method = kind(**kind.busiest)
    return tidefast.Fleet(models.load(network), method, reset=policy or "never", optimizer=OPTIMIZER, workers=1)


def seconds(call: Callable[[], object]) -> float:
    """Of the processor, for one call."""
    started = time.process_time()
    call()
    return time.process_time() - started


def row(network: str, pair: str, count: int, size: int, rounds: int, window: int) -> str:
    """One line of the table."""
    names = [f"camera-{number}" for number in range(count)]
    together, alone = made(network, pair), made(network, pair)
    shown = _pictures(network, count * size)
    largest = 0.0

    def one_by_one(batches: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: alone[name](images) for name, images in batches.items()}

    def played(turn: int) -> tuple[float, float]:
        nonlocal largest
        order = torch.randperm(len(shown), generator=torch.Generator().manual_seed(turn))
        batches = dict(zip(names, shown[order].split(size), strict=True))
        given: list[dict[str, torch.Tensor]] = []
        times = [
            seconds(lambda: given.append(together.adapt(batches))),
            seconds(lambda: given.append(one_by_one(batches))),
        ]
        for name in names:
            difference, scale = (given[0][name] - given[1][name]).abs().max(), given[1][name].abs().max()
            largest = max(largest, float(difference / scale))
        return times[0], times[1]

    warm = window if size == 1 else 2  # single images: until windows are full
    for turn in range(warm):
        played(turn)
    # Of single images every round is a whole window, of which one call in `window` makes a step.
    calls = window if size == 1 else 1
    times = [
        [sum(part) for part in zip(*(played(warm + calls * r + c) for c in range(calls)), strict=True)]
        for r in range(rounds)
    ]
    joint, single = (statistics.median(column) / calls for column in zip(*times, strict=True))
    ratios = sorted(one / both for both, one in times)
    cells = [
        network,
        pair,
        f"{count} x {size}",
        f"{1e3 * single / count:.2f}",
        f"{1e3 * joint / count:.2f}",
        f"{single / joint:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        f"{together.numbers_held() / alone.numbers_held():.2f}",
        f"{largest:.0e}",
    ]
    return f"| {' | '.join(cells)} |"


def _pictures(network: str, count: int) -> torch.Tensor:
    stream = streams.make("drift", seed=0, steps=-(-count // 64), batch=64)
    return torch.cat([batch.images for batch in stream.batches()])[:count]


TITLE = (
    "| network | step | streams x images | ms a stream, one by one | together | ratio (of the rounds) | "
    "memory of a stream | largest difference |\n| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["bundled-resnet", "bundled-vit"])
    parser.add_argument("--pairs", nargs="+", default=["tent", "eta+asr", "roid+asr"], help="method or method+policy")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16], help="images of a stream in a call")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", choices=["kept", "default"], default="kept", help="see tidefast.keep_memory")
    options = parser.parse_args()
    if options.memory == "kept":
        tidefast.keep_memory()
    torch.set_num_threads(1)
    logging.getLogger("tidefast").setLevel(logging.ERROR)  # that batches are small is the point
    print(TITLE, flush=True)
    for network in options.networks:
        for pair in options.pairs:
            for size in options.sizes:
                rounds = max(1, options.rounds // 3) if size == 1 else options.rounds
                print(row(network, pair, options.streams, size, rounds, window=16), flush=True)


if __name__ == "__main__":
    main()
