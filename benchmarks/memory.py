"""A step in a process that keeps its memory (`tidefast.keep_memory`) and in one that does not, in both layouts.

    python benchmarks/memory.py

ETA + ASR, one thread. The setting is a process's, so each measurement has a process of its own; the sides take turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

NETWORKS = {
    "bundled-resnet": (64, 32),
    "bundled-vit": (64, 32),
    "bundled-lite0": (32, 128),
    "resnet50-224px": (8, 224),
}
"""Images of a batch, and their side."""
MEMORY = ("default", "kept")
LAYOUTS = ("contiguous", "channels_last")


def measured(network: str, memory: str, layout: str, steps: int) -> dict[str, float]:
    """In this process: milliseconds of CPU and page faults a step, and the most memory held."""
    import torch

    import tidefast
    from tidefast import models, speed

    torch.set_num_threads(1)
    if memory == "kept" and not tidefast.keep_memory():
        raise SystemExit("memory cannot be kept here")
    batch, side = NETWORKS[network]
    model = speed.SHAPES[network].network() if network in speed.SHAPES else models.load(network)
    model = model.to(memory_format=getattr(torch, f"{layout}_format" if layout == "contiguous" else layout))
    adapter = tidefast.adapt(model, speed.methods_measured()["eta"], reset="asr")  # every sample is selected
    images = torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        adapter(images)
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(steps):
        adapter(images)
    after = resource.getrusage(resource.RUSAGE_SELF)
    status = Path("/proc/self/status").read_text().split()
    return {
        "user": 1e3 * (after.ru_utime - before.ru_utime) / steps,
        "system": 1e3 * (after.ru_stime - before.ru_stime) / steps,
        "faults": (after.ru_minflt - before.ru_minflt) / steps,
        "peak": int(status[status.index("VmHWM:") + 1]) / 1024,
    }


def main() -> None:
    """A table as Markdown: the median of each side's rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=NETWORKS, action="append", help="may be repeated (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    parser.add_argument("--only", nargs=2, metavar=("MEMORY", "LAYOUT"), help="one measurement, here, as JSON")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(options.network[0], *options.only, options.steps)))
        return
    print("| network | layout | memory | user, ms | system, ms | page faults | peak, MB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for network in options.network or NETWORKS:
        sides: dict[tuple[str, str], list[dict[str, float]]] = {side: [] for side in itertools.product(MEMORY, LAYOUTS)}
        for _ in range(options.rounds):
            for side, rounds in sides.items():
                call = (sys.executable, __file__, "--network", network, "--steps", str(options.steps), "--only", *side)
                rounds.append(json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout))
        for (memory, layout), rounds in sides.items():
            user, system, faults, peak = (
                statistics.median(values)
                for values in zip(*(measurement.values() for measurement in rounds), strict=True)
            )
            print(
                f"| {network} | {layout} | {memory} | {user:.1f} | {system:.1f} | {faults:,.0f} | {peak:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
