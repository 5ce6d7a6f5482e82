"""Methods and resets on the bundled network and images, over seeds; finished runs are kept and never redone.

python benchmarks/embedded.py alpha0               # which alpha0 suits ten classes: docs/embedded-benchmark.md
python benchmarks/embedded.py fidelity             # the switches of docs/fidelity.md
python benchmarks/embedded.py alpha0 --table       # only print what is there
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import torch

import tidefast
from tidefast import methods, models, streams
from tidefast.core.files import write_atomically
from tidefast.methods.base import Method
from tidefast.resets import ASR, Never, Reset

RESULTS = Path(__file__).parent / "results" / "embedded"
ADAM = functools.partial(torch.optim.Adam, lr=1e-3)
ETA, ROID = methods.ETA.for_classes(10), methods.ROID()
Run = tuple[Method, Reset]


def switched(**change: object) -> ASR:
    """ASR's defaults with one switch turned."""
    return dataclasses.replace(ASR(), **change)  # type: ignore[arg-type]  # names and values are checked by ASR


def eta(label: str, policy: Reset) -> dict[str, Run]:
    """The policy on ETA."""
    return {f"eta + {label}": (ETA, policy)}


def roid(label: str, policy: Reset) -> dict[str, Run]:
    """The policy on ROID."""
    return {f"roid + {label}": (ROID, policy)}


GROUPS: dict[str, dict[str, Run]] = {
    "alpha0": {
        **eta("no reset", Never()),
        **eta("asr alpha0=0.3", ASR(alpha0=0.3)),
        **eta("asr", ASR()),
        **eta("asr alpha0=0.8", ASR(alpha0=0.8)),
        **eta("asr alpha0=0.9", ASR(alpha0=0.9)),
        **roid("no reset", Never()),
        **roid("asr", ASR()),
        **roid("asr alpha0=0.9", ASR(alpha0=0.9)),
        **roid("ASR.reference", ASR.reference()),
        **roid("ASR.reference alpha0=0.9", ASR.reference(alpha0=0.9)),
    },
    "fidelity": {
        **eta("asr", ASR()),
        **eta("ASR.paper", ASR.paper()),
        **eta("ASR.reference", ASR.reference()),
        **eta("unit=tensor", switched(unit="tensor")),
        **eta("rounding=ceil-kept", switched(rounding="ceil-kept")),
        **eta("fisher=total", switched(fisher="total")),
        **eta("accumulator_init=zero", switched(accumulator_init="zero")),
        **eta("source_stats=running", switched(source_stats="running")),
        **eta("clear_optimizer=False", switched(clear_optimizer=False)),
        **roid("asr", ASR()),
        **roid("ASR.paper", ASR.paper()),
        **roid("ASR.reference", ASR.reference()),
        **roid("target=anchor", switched(target="anchor")),
    },
}


def run(group: str, name: str, seed: int, steps: int, batch: int) -> dict[str, object]:
    """Adapt along the stream; accuracy of every batch and the steps at which a reset came."""
    torch.set_num_threads(1)
    method, policy = GROUPS[group][name]
    adapter = tidefast.adapt(models.load("bundled-resnet"), method, reset=policy, optimizer=ADAM, seed=seed)
    accuracies, resets = [], []
    for shown in streams.make("drift", seed=seed, steps=steps, batch=batch).batches():
        accuracies.append(float((adapter(shown.images).argmax(1) == shown.labels).float().mean()))
        if adapter.last is not None and adapter.last.reset_fraction > 0:
            resets.append(shown.index)
    return {"name": name, "seed": seed, "steps": steps, "batch": batch, "accuracies": accuracies, "resets": resets}


def path_of(name: str, seed: int, steps: int, batch: int) -> Path:
    """Where a run's result is kept; equal runs of two groups share it."""
    return RESULTS / f"{name.replace(' ', '')}-seed{seed}-{steps}x{batch}.json"


def table(group: str, seeds: int, steps: int, batch: int) -> None:
    """Mean (and, over several seeds, standard deviation) of what has run."""
    print(f"accuracy in %: {steps} batches of {batch}, stream 'drift', {seeds} seed(s)\n")
    print("| run | overall | last quarter | resets |\n| --- | --- | --- | --- |")
    for name in GROUPS[group]:
        paths = [path_of(name, seed, steps, batch) for seed in range(seeds)]
        results = [json.loads(path.read_text()) for path in paths if path.exists()]
        if results:
            whole = [100 * float(np.mean(result["accuracies"])) for result in results]
            last = [100 * float(np.mean(result["accuracies"][-(steps // 4) :])) for result in results]
            resets = float(np.mean([len(result["resets"]) for result in results]))
            cells = [f"{np.mean(v):.1f}" + (f" ± {np.std(v):.1f}" if len(v) > 1 else "") for v in (whole, last)]
            print(f"| {name} | {cells[0]} | {cells[1]} | {resets:.0f} |")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    size = (options.steps, options.batch)
    RESULTS.mkdir(parents=True, exist_ok=True)
    missing = [
        (name, seed)
        for seed in range(options.seeds)
        for name in GROUPS[options.group]
        if not path_of(name, seed, *size).exists()
    ]
    if missing and not options.table:
        with ProcessPoolExecutor(options.processes) as pool:
            futures = {pool.submit(run, options.group, name, seed, *size): (name, seed) for name, seed in missing}
            for count, future in enumerate(as_completed(futures), 1):
                path = path_of(*futures[future], *size)
                write_atomically(path, json.dumps(future.result(), separators=(",", ":")).encode())
                print(f"{count} of {len(missing)}: {path.stem}", flush=True)
    table(options.group, options.seeds, *size)


if __name__ == "__main__":
    main()
