"""Batches made ahead of time: our worker processes and torch's DataLoader side by side.

    python benchmarks/prefetch.py

Both spawn processes of one thread, give the same bits in the same order and begin anywhere. They take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from tidefast import streams
from tidefast.streams import Batch, Seekable
from tidefast.streams.batch import RawBatch
from tidefast.streams.prefetch import use_one_thread

Side = Callable[[Seekable, int, int, int], Iterator[Batch]]


class Steps(Dataset[RawBatch]):
    """A stream as the DataLoader wants it: item k is batch k."""

    def __init__(self, stream: Seekable) -> None:
        self.stream = stream

    def __getitem__(self, k: int) -> RawBatch:
        return self.stream.pixels(k)

    def __len__(self) -> int:
        return len(self.stream)


def ours(stream: Seekable, start: int, stop: int, workers: int) -> Iterator[Batch]:
    """`Stream.batches` as it is."""
    return stream.batches(start, stop, workers)


def dataloader(stream: Seekable, start: int, stop: int, workers: int) -> Iterator[Batch]:
    """The same by torch's DataLoader; prefetch_factor 4: as many batches ahead as ours."""
    loader = DataLoader(
        Steps(stream),
        batch_size=None,
        sampler=range(start, stop),
        num_workers=workers,
        collate_fn=_as_it_is,
        worker_init_fn=_begin,
        multiprocessing_context="spawn",
        prefetch_factor=4,
    )
    for raw in loader:
        yield raw.batch()


def _as_it_is(raw: RawBatch) -> RawBatch:
    return raw


def _begin(worker: int) -> None:
    use_one_thread()


SIDES: dict[str, Side] = {"ours": ours, "DataLoader": dataloader}


def measured(side: Side, name: str, workers: int, steps: int) -> tuple[float, float, float, float]:
    """Seconds to the first batch, batches per second after it, median wait in ms, CPU of all processes in ms per batch.

    The wait is that of a loop which spends 50 ms on each batch, asleep, as one on an accelerator does.
    """
    slow = 40
    stream = streams.make(name, seed=43, steps=steps + slow, batch=64)
    before, started = _cpu(), time.perf_counter()
    batches = side(stream, 0, len(stream), workers)
    next(batches)
    first = time.perf_counter()
    for _ in range(steps - 1):
        next(batches)
    seconds = time.perf_counter() - first
    waits = []
    for _ in range(slow):
        time.sleep(0.05)
        asked = time.perf_counter()
        next(batches)
        waits.append(time.perf_counter() - asked)
    with contextlib.suppress(StopIteration):  # its processes end
        next(batches)
    return first - started, (steps - 1) / seconds, 1e3 * statistics.median(waits), 1e3 * (_cpu() - before) / len(stream)


def _cpu() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


class Raises(streams.Stream):
    """Batch 3 cannot be made."""

    def pixels(self, k: int) -> RawBatch:
        if k == 3:
            raise streams.StreamError("no image 77")
        return super().pixels(k)


def behaviour(side: Side) -> Iterator[tuple[str, str]]:
    """What happens when something goes wrong."""
    stream = streams.make("drift", seed=43, steps=40, batch=64)
    same = all(
        torch.equal(a.images, b.images) and a.spans == b.spans
        for a, b in zip(side(stream, 7, 15, 2), stream.batches(7, 15), strict=True)
    )
    yield "from step 7 with two workers", "the same bits" if same else "OTHER BITS"
    yield "an exception in a worker", _ending(side(Raises(None, stream.schedule), 0, 10, 1), lambda: None)
    killed = side(streams.make("drift", seed=43, steps=400, batch=64), 0, 400, 1)
    yield "a worker that is killed", _ending(killed, lambda: os.kill(_children()[-1], signal.SIGKILL))


def _ending(batches: Iterator[Batch], harm: Callable[[], None]) -> str:
    next(batches)
    harm()
    started, count = time.perf_counter(), 1
    try:
        for _ in batches:
            count += 1
    except Exception as error:
        seconds = time.perf_counter() - started
        return f"after batch {count - 1}, {seconds:.1f} s later: {type(error).__name__}: {str(error).splitlines()[0]}"
    return "NOTHING"


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def main() -> None:
    """Both tables, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| stream | workers | side | first batch, s | batches/s | wait in a loop of 50 ms, ms | CPU per batch, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in ("ccc-mini", "drift"):
        for workers in (1, 2):
            rows: dict[str, list[tuple[float, ...]]] = {side: [] for side in SIDES}
            for _ in range(options.rounds):
                for side, batches in SIDES.items():
                    rows[side].append(measured(batches, name, workers, options.steps))
            for side, values in rows.items():
                first, rate, wait, cpu = (statistics.median(column) for column in zip(*values, strict=True))
                print(
                    f"| `{name}` | {workers} | {side} | {first:.1f} | {rate:.0f} | {wait:.2f} | {cpu:.1f} |", flush=True
                )
    for side, batches in SIDES.items():
        for what, answer in behaviour(batches):
            print(f"- {side}, {what}: {answer}", flush=True)


if __name__ == "__main__":
    main()
