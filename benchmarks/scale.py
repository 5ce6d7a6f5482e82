"""Past these machines: what 100,000 streams on 100 nodes would need, from what is measured here.

    python benchmarks/scale.py

Measured in this process, one thread, processor time: a step, the memory and the snapshot of a stream, its share of the
metrics, a request; of a step also its arithmetic, the bytes it moves and the kernels it launches. Taken from data
sheets: the accelerator. Assumed: the nodes, the rates of the streams, what the rest costs. All of that is printed.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import tidefast
from tidefast import models, speed
from tidefast.core.record import StepRecord
from tidefast.serve.metrics import Metrics

IMAGES = 16
NETWORKS = {"bundled-resnet": 32, "bundled-lite0": 128}
"""And the side of their images."""


# -- measured ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Of one network under ETA + ASR, batches of `IMAGES`."""

    network: str
    step: float
    """Seconds of one core."""
    flops: float
    moved: float
    """Bytes that its operations read and write."""
    launches: int
    stream: float
    """Bytes of the tensors of a stream that is in memory, counted."""
    stored: float
    """Bytes of a stream in a snapshot."""
    saving: float
    """Seconds of one core to write a stream that has changed."""
    loading: float
    """Seconds of one core to read one that has been idle."""


class Traffic(TorchDispatchMode):
    """Counts operations, and the bytes of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.launches = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, and do."""
        result = func(*args, **(kwargs or {}))
        touched = (*args, *(result if isinstance(result, (tuple, list)) else (result,)))
        if not func.is_view:
            self.launches += 1
            self.bytes += sum(one.numel() * one.element_size() for one in touched if isinstance(one, torch.Tensor))
        return result


def measured(name: str, steps: int, streams: int) -> Measured:
    """One network in this process."""
    torch.manual_seed(0)
    network, side = models.load(name), NETWORKS[name]
    images = torch.rand(IMAGES, 3, side, side)
    method = speed.methods_measured()["eta"]  # every sample is selected
    adapter = tidefast.adapt(network, method, reset="asr")
    for _ in range(2):
        adapter(images)
    seconds = []
    for _ in range(steps):
        started = time.process_time()
        adapter(images)
        seconds.append(time.process_time() - started)
    with FlopCounterMode(display=False) as flops:
        adapter(images)
    with Traffic() as traffic:
        adapter(images)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fleet = tidefast.Fleet(network, method, reset="asr", gather=1, folder=folder / "idle", resident=streams + 1)
        few = images[:4]  # what a stream holds does not depend on it
        fleet["first"](few)
        for number in range(streams):
            fleet[f"{number}"](few)
        each = 4 * fleet.numbers_held() / (streams + 1)
        started = time.process_time()
        fleet.snapshot(folder / "snapshot")
        saving = (time.process_time() - started) / (streams + 1)
        files = [file.stat().st_size for file in (folder / "snapshot").iterdir()]
        again = tidefast.Fleet(network, method, reset="asr", gather=1, folder=folder / "other", resident=streams)
        again.restore(folder / "snapshot")
        started = time.process_time()
        for number in range(streams):
            again.wake(f"{number}")
        loading = (time.process_time() - started) / streams
    total = flops.get_total_flops()
    return Measured(
        *(name, statistics.median(seconds), total, traffic.bytes, traffic.launches, each),
        *(sum(files) / (streams + 1), saving, loading),
    )


def metrics_of(streams: int) -> tuple[int, float]:
    """Bytes of /metrics with so many labelled streams, and the seconds of one core that reading it takes."""
    metrics = Metrics(streams)
    measurements = {"concentration": -1.5, "threshold": -1.2, "inconsistency": 0.1, "momentum": 0.9, "penalty": 5.0}
    for number in range(streams):
        metrics.step(f"camera-{number:06d}", StepRecord(1, measurements=measurements), 0.01, IMAGES)
    started = time.process_time()
    text = metrics.read().text()
    return len(text), time.process_time() - started


def decoding(side: int) -> float:
    """Seconds of one core for what a request costs beside its step and HTTP: unpacking an .npy and its statistics."""
    import io

    from tidefast.serve import images

    file = io.BytesIO()
    np.save(file, np.zeros((IMAGES, side, side, 3), np.uint8))
    started = time.process_time()
    for _ in range(20):
        batch = images.as_batch([images.unpacked(file.getvalue(), 10**9)])
        torch.std_mean(batch), torch.aminmax(batch)
    return (time.process_time() - started) / 20


# -- taken and assumed ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accelerator:
    """From its data sheet: NVIDIA A10, dense."""

    name: str = "NVIDIA A10"
    flops: float = 31.2e12
    """A second, float32 outside the tensor cores."""
    bandwidth: float = 600e9
    """Bytes a second."""
    memory: float = 24e9
    launch: float = 5e-6
    """Assumed: seconds until a small kernel is on its way."""

    def roofs(self, network: Measured) -> tuple[float, float, float]:
        """Steps a second at most, by arithmetic, memory and launches."""
        return self.flops / network.flops, self.bandwidth / network.moved, 1 / (network.launches * self.launch)


@dataclass(frozen=True)
class Assumed:
    """A node, and what it is asked."""

    nodes: int = 100
    streams: int = 100_000
    cores: int = 16
    memory: float = 64e9
    base: float = 1e9
    """Bytes of a process without streams."""
    disk: float = 1e9
    """Bytes a second that a node's disk takes."""
    shared: float = 5e9
    """Bytes a second that a storage shared by all nodes takes."""
    network: float = 25e9 / 8
    request: float = 1e-3
    """Seconds of one core for HTTP, as docs/production.md found under load."""
    period: float = 10.0
    """Seconds from one batch of a stream to its next."""
    spread: float = 1.0
    """Of the logarithm of the streams' rates."""
    snapshots: float = 30.0
    scrape: float = 15.0
    series: int = 13
    """Of a labelled stream, as counted in /metrics under ASR."""
    series_memory: float = 3e3
    """Bytes of a series in Prometheus' head."""


# -- what breaks first ------------------------------------------------------------------------------------------------


def loads(network: Measured, assumed: Assumed, text: tuple[float, float], labels: int) -> Iterator[tuple[str, float]]:
    """By resource, the share of it that is used; 1 is the end."""
    each = assumed.streams / assumed.nodes
    rate = each / assumed.period  # batches a second on a node
    bytes_in = IMAGES * 3 * NETWORKS[network.network] ** 2
    changed = min(each, each * assumed.snapshots / assumed.period)
    written = changed * network.stored / assumed.snapshots
    unpacking = decoding(NETWORKS[network.network])
    yield "cores, steps", rate * network.step / assumed.cores
    yield "cores, requests", rate * (assumed.request + unpacking) / assumed.cores
    yield "cores, snapshots", changed * network.saving / assumed.snapshots / assumed.cores
    yield f"one core, /metrics with {labels} labels", labels * text[1] / assumed.scrape
    yield "memory, all streams resident", (assumed.base + each * network.stream) / assumed.memory
    yield "network, images in", rate * bytes_in / assumed.network
    yield "disk of a node, snapshots", written / assumed.disk
    yield "storage shared by all nodes, snapshots", written * assumed.nodes / assumed.shared
    yield (
        "16 GB of one Prometheus, series",
        labels * assumed.nodes * assumed.series * assumed.series_memory / 16e9,
    )


def imbalance(assumed: Assumed, partitions: int, seed: int = 0) -> tuple[float, float]:
    """The fullest node's load by the average: with all nodes, and after one of them is gone."""
    rates = np.random.default_rng(seed).lognormal(0.0, assumed.spread, assumed.streams)
    where = np.array([zlib.crc32(f"camera-{number}".encode()) % partitions for number in range(assumed.streams)])
    by_partition = np.bincount(where, rates, partitions)
    every = _placed(by_partition, assumed.nodes)
    fewer = _placed(by_partition, assumed.nodes - 1)
    return float(every.max() / every.mean()), float(fewer.max() / every.mean())


def _placed(partitions: np.ndarray, nodes: int) -> np.ndarray:
    """The partitions dealt out in the order of their numbers: nobody knows their loads."""
    loads = np.zeros(nodes)
    np.add.at(loads, np.arange(len(partitions)) % nodes, partitions)
    return loads


def waiting(assumed: Assumed, step: float, use: float, seed: int = 0, seconds: float = 600.0) -> tuple[float, float]:
    """The median and the 99th percentile from request to answer on one node, at that use of its cores, in seconds.

    Each core is a worker; a stream has one step at a time; arrivals are Poisson.
    """
    generator = np.random.default_rng(seed)
    rate = use * assumed.cores / step
    count = min(200_000, int(rate * seconds))
    arrivals = np.cumsum(generator.exponential(1 / rate, count))
    streams = generator.integers(0, assumed.streams // assumed.nodes, count)
    free = [0.0] * assumed.cores
    busy: dict[int, float] = {}
    took = []
    for at, stream in zip(arrivals.tolist(), streams.tolist(), strict=True):
        begin = max(at, heapq.heappop(free), busy.get(stream, 0.0))
        end = begin + step
        heapq.heappush(free, end)
        busy[stream] = end
        took.append(end - at)
    settled = took[len(took) // 10 :]
    return float(np.median(settled)), float(np.quantile(settled, 0.99))


# -- told -------------------------------------------------------------------------------------------------------------


def report(found: list[Measured], assumed: Assumed) -> Iterator[str]:
    """Tables in Markdown."""
    accelerator = Accelerator()
    yield f"measured, ETA + ASR, batches of {IMAGES}, one core:\n"
    yield "| network | step, ms | Gflop | MB moved | kernels | stream, kB | stored, kB | save, ms | load, ms |"
    yield "| --- |" + " ---: |" * 8
    for one in found:
        yield (
            f"| {one.network} | {1e3 * one.step:.1f} | {one.flops / 1e9:.2f} | {one.moved / 1e6:.0f} | {one.launches} "
            f"| {one.stream / 1e3:.0f} | {one.stored / 1e3:.0f} | {1e3 * one.saving:.2f} | {1e3 * one.loading:.2f} |"
        )
    few, many = metrics_of(200), metrics_of(10_000)
    each = ((many[0] - few[0]) / 9800, (many[1] - few[1]) / 9800)
    yield f"\nmeasured, /metrics: {each[0]:.0f} bytes and {1e6 * each[1]:.0f} us of a core for each labelled stream\n"
    yield f"steps a second of a core (measured) and of {accelerator.name} (its data sheet; 5 us a kernel assumed):\n"
    yield "| network | a core | arithmetic | memory | launches | the least of these |\n| --- |" + " ---: |" * 5
    for one in found:
        parts = (
            accelerator.flops / one.flops,
            accelerator.bandwidth / one.moved,
            1 / accelerator.launch / one.launches,
        )
        yield (
            f"| {one.network} | {1 / one.step:.1f} | "
            + " | ".join(f"{part:.0f}" for part in (*parts, min(parts)))
            + " |"
        )
    for labels in (200, assumed.streams // assumed.nodes):
        yield f"\nuse of each resource, a batch a stream every {assumed.period:g} s, {labels} labels a node:\n"
        yield "| resource | " + " | ".join(one.network for one in found) + " |\n| --- |" + " ---: |" * len(found)
        used = [dict(loads(one, assumed, each, labels)) for one in found]
        for resource in used[0]:
            yield f"| {resource} | " + " | ".join(_percent(use[resource]) for use in used) + " |"
    yield "\nthe fullest node by the average, rates spread by e on each side:\n"
    yield "| partitions | all nodes | one node gone |\n| ---: | ---: | ---: |"
    for partitions in (100, 400, 1600, 6400):
        every, fewer = imbalance(assumed, partitions)
        yield f"| {partitions} | {every:.2f} | {fewer:.2f} |"
    yield f"\nfrom request to answer on a node of {assumed.cores} cores, p50 and p99 as multiples of a step:\n"
    yield "| use of the cores | p50 | p99 |\n| ---: | ---: | ---: |"
    step = found[0].step
    for use in (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99):
        middle, late = waiting(assumed, step, use)
        yield f"| {100 * use:.0f} % | {middle / step:.2f} | {late / step:.2f} |"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def main() -> None:
    """Measure, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="to measure (default 10)")
    parser.add_argument("--streams", type=int, default=200, help="to measure the memory of (default 200)")
    parser.add_argument("--period", type=float, default=10.0, help="seconds between batches of a stream (default 10)")
    parser.add_argument("--out", type=Path, help="a file for what was measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [measured(name, options.steps, options.streams) for name in NETWORKS]
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    print("\n".join(report(found, Assumed(period=options.period))))


if __name__ == "__main__":
    main()
