"""Accuracy of ASR under each switch between the paper's text and the released code, on the demonstration's stream.

python benchmarks/fidelity.py --seeds 3 > fidelity.txt
"""

from __future__ import annotations

import argparse
import dataclasses
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np
import torch

from holdfast import demo, methods, resets
from holdfast.adapter import Adapter
from holdfast.methods.base import Method
from holdfast.resets import ASR, Never

BASES: dict[str, Method] = {"eta": methods.ETA.for_classes(10), "roid": methods.ROID()}
DEFAULT = ASR()
VARIANTS: dict[str, resets.Reset] = {
    "no reset": Never(),
    "ASR, our defaults": DEFAULT,
    "ASR.paper()": ASR.paper(),
    "ASR.reference()": ASR.reference(),
    'target="anchor"': dataclasses.replace(DEFAULT, target="anchor"),
    'unit="tensor"': dataclasses.replace(DEFAULT, unit="tensor"),
    'rounding="ceil-kept"': dataclasses.replace(DEFAULT, rounding="ceil-kept"),
    'fisher="total"': dataclasses.replace(DEFAULT, fisher="total"),
    'accumulator_init="zero"': dataclasses.replace(DEFAULT, accumulator_init="zero"),
    'source_stats="running"': dataclasses.replace(DEFAULT, source_stats="running"),
    "clear_optimizer=False": dataclasses.replace(DEFAULT, clear_optimizer=False),
}


def accuracy(base: str, variant: str, seed: int, steps: int) -> tuple[float, int]:
    """Percentage of correct answers over the stream, and number of resets."""
    torch.set_num_threads(1)
    images, labels = demo.digits()
    half = len(images) // 2
    network = demo.train(images[:half], labels[:half], seed)
    adapter = Adapter(network, BASES[base], reset=VARIANTS[variant], optimizer=demo.OPTIMIZER, seed=seed)
    correct, count = [], 0
    for shown, truth in demo.stream(images[half:], labels[half:], steps, 32, seed):
        correct.append((adapter(shown).argmax(1) == truth).double().mean().item())
        count += adapter.last is not None and adapter.last.reset_fraction > 0
    return 100 * float(np.mean(correct)), count


def main() -> None:
    """Run all variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    cases = list(product(BASES, VARIANTS, range(options.seeds)))
    with ProcessPoolExecutor(options.processes) as pool:
        futures = {case: pool.submit(accuracy, *case, options.steps) for case in cases}
        results = {case: future.result() for case, future in futures.items()}
    print(
        f"Accuracy in %, mean and standard deviation over {options.seeds} seeds, {options.steps} batches of 32; resets."
    )
    print("\n| variant | " + " | ".join(BASES) + " |\n|" + " --- |" * (len(BASES) + 1))
    for variant in VARIANTS:
        cells = []
        for base in BASES:
            values, counts = zip(*(results[base, variant, seed] for seed in range(options.seeds)), strict=True)
            cells.append(f"{np.mean(values):.1f} ± {np.std(values):.1f} ({np.mean(counts):.0f})")
        print(f"| {variant} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
