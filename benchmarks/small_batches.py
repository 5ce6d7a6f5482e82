"""What small batches cost on a network with BatchNorm, gathered or each a step of its own; and those of a service.

    python benchmarks/small_batches.py
    python benchmarks/small_batches.py --clients 1 2 4 16
    python benchmarks/small_batches.py --memory 0 1 2 4 --stream drift --seeds 11 12 13 14

bundled-resnet, ROID + ASR and batch statistics alone, clean images, the same ones in batches of every size. With
`--clients`, so many clients of one stream each send one image after the other to a service, which makes batches of
those that wait. With `--memory`, batches smaller than the window are gathered and sliding statistics remember so many
windows, mean over the streams of the seeds; 0: there are none, and every answer is a pass over the window.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from serving import Connection, Levels, adapt, serving

import tidefast
from tidefast import adapter as adapting
from tidefast import models, streams

SIZES = (1, 2, 3, 4, 8, 16, 64)
SLIDING = (1, 2, 4, 8)
CONTESTANTS = {"batch statistics": ("batchnorm", "never"), "ROID + ASR": ("roid", "asr")}
GATHERED = {"single ones gathered": 2, "fewer than 4 gathered (adapt)": 4, "fewer than 16 gathered (serve)": 16}


def main() -> None:
    """Print a table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1280)
    parser.add_argument("--stream", default="clean")
    parser.add_argument("--clients", type=int, nargs="+", help="ask a service, with so many clients at a time")
    parser.add_argument("--memory", type=int, nargs="+", help="of sliding statistics, in windows")
    parser.add_argument("--seeds", type=int, nargs="+", default=[43], help="with --memory: of the streams")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        remembering(options.memory, [shown(options.stream, options.images, seed) for seed in options.seeds])
        return
    images, labels = shown(options.stream, options.images, 43)
    source = share(models.load("bundled-resnet")(images), labels)
    columns = options.clients or SIZES
    unit = "clients" if options.clients else "images a batch"
    print(f"source: {source:.1f} %\n\n| accuracy, % by {unit} | " + " | ".join(map(str, columns)) + " |")
    print("| --- |" + " ---: |" * len(columns))
    for name, (method, reset) in CONTESTANTS.items():
        for title, gather in GATHERED.items():
            if options.clients:
                given = ("--method", method, "--reset", reset, "--gather", str(gather), "--optimizer", "sgd:lr=2.5e-4")
                cells = [f"{asyncio.run(served(images, labels, count, given)):.1f}" for count in columns]
            else:
                cells = [f"{over(images, labels, size, method, reset, felt(size, gather)):.1f}" for size in columns]
            print(f"| {name}, {title} | " + " | ".join(cells) + " |", flush=True)


def shown(stream: str, images: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of a stream."""
    batches = list(streams.make(stream, steps=images // 64, batch=64, seed=seed).batches())
    return torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches])


def remembering(memories: list[int], each: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Print a table of what the memory of sliding statistics is worth."""
    print("| accuracy, % by images a batch | " + " | ".join(map(str, SLIDING)) + " |")
    print("| --- |" + " ---: |" * len(SLIDING))
    for name, (method, reset) in CONTESTANTS.items():
        for memory in memories:
            cells = [
                f"{statistics.mean(gathered(*given, size, method, reset, memory) for given in each):.1f}"
                for size in SLIDING
            ]
            title = f"{memory} x the window" if memory else "every answer a pass over the window"
            print(f"| {name}, {title} | " + " | ".join(cells) + " |", flush=True)


def gathered(images: torch.Tensor, labels: torch.Tensor, size: int, method: str, reset: str, memory: int) -> float:
    """Accuracy in percent over batches of `size` that are gathered, with another memory of sliding statistics."""
    adapter = tidefast.adapt(models.load("bundled-resnet"), method, reset=reset, gather=16)
    adapter._slides, adapting._MEMORY = memory > 0, memory
    return share(torch.cat([adapter(part) for part in images.split(size)]), labels)


def felt(size: int, gather: int) -> int:
    """Of the bounds with which batches of one size are treated alike, one."""
    return gather if 1 < size < gather else 2


def share(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Of right answers, in percent."""
    return 100 * (logits.argmax(1) == labels).double().mean().item()


@functools.cache
def over(images: torch.Tensor, labels: torch.Tensor, size: int, method: str, reset: str, gather: int) -> float:
    """Accuracy in percent over batches of `size`."""
    adapter = tidefast.adapt(models.load("bundled-resnet"), method, reset=reset, gather=gather)
    return share(torch.cat([adapter(part) for part in images.split(size)]), labels)


async def served(images: torch.Tensor, labels: torch.Tensor, clients: int, given: tuple[str, ...]) -> float:
    """Accuracy in percent of a service that is asked by so many clients, each with one image after the other."""
    levels: Levels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    order, right = itertools.count(), np.zeros(len(labels), bool)

    async def client(port: int) -> None:
        connection = Connection(port)
        while (at := next(order)) < len(labels):
            answer = await adapt(connection, "one", levels[at : at + 1])
            right[at] = answer.said["predictions"][0]["class"] == int(labels[at])
        connection.close()

    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "state", *given) as service:
        await asyncio.gather(*(client(service.port) for _ in range(clients)))
    return 100 * float(right.mean())


if __name__ == "__main__":
    main()
