"""Accuracy over a stream minus that of batch statistics alone: each method plain, with ASR and with the guard.

    python benchmarks/guard.py --streams drift recurring drift-easy --seed 3
    python benchmarks/guard.py --streams ccc-mini:level=easy ccc-mini:level=medium ccc-mini:level=hard --seed 43

bundled-resnet, Adam at 1, 10 and 100 times the published rate; the canaries are clean images that no stream shows.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

import tidefast
from tidefast import datasets, models, streams

PUBLISHED = 1e-3
METHODS = {"Tent": "tent", "ETA": "eta:similarity_margin=0.4", "ROID": "roid"}
POLICIES = {"plain": "never", "+ ASR": "asr", "+ guard": "guard"}


def main() -> None:
    """Print a line for each stream, rate and method, as Markdown, and the mean and the worst of each column."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", nargs="+", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--canaries", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tidefast.keep_memory()
    network, canaries = models.load("bundled-resnet"), held_images(options.canaries)
    print("| stream | rate | method | batch statistics, % | " + " | ".join(POLICIES) + " |")
    print("| --- | ---: | --- | ---: |" + " ---: |" * len(POLICIES))
    columns: dict[str, list[float]] = {name: [] for name in POLICIES}
    for name in options.streams:
        stream = streams.make(name, part="stream", seed=options.seed, batch=16, steps=options.steps)
        batches = [(batch.images, batch.labels) for batch in (stream[step] for step in range(options.steps))]
        reference, _ = over(tidefast.adapt(network, "batchnorm"), batches)
        for rate in (1, 10, 100):
            for label, method in METHODS.items():
                cells = []
                for title, policy in POLICIES.items():
                    source = canaries if policy == "guard" else None
                    lr = f"adam:lr={rate * PUBLISHED}"
                    adapter = tidefast.adapt(network, method, reset=policy, source=source, optimizer=lr)
                    accuracy, resets = over(adapter, batches)
                    columns[title].append(accuracy - reference)
                    cells.append(
                        f"{accuracy - reference:+.1f} ({resets})" if resets else f"{accuracy - reference:+.1f}"
                    )
                print(f"| {name} | {rate} | {label} | {reference:.1f} | " + " | ".join(cells) + " |", flush=True)
    for word, summary in (("mean", np.mean), ("worst", np.min)):
        print(f"| **{word}** | | | | " + " | ".join(f"{summary(values):+.1f}" for values in columns.values()) + " |")


def held_images(count: int) -> Tensor:
    """Clean images [count, 3, 32, 32] that no stream of `part="stream"` shows, spread over the classes."""
    images = np.asarray(datasets.open("bundled:part=held").images)
    chosen = images[np.linspace(0, len(images) - 1, count).round().astype(int)]
    return torch.as_tensor(chosen).permute(0, 3, 1, 2).float() / 255


def over(adapter: tidefast.Adapter, batches: list[tuple[Tensor, Tensor]]) -> tuple[float, int]:
    """Accuracy in per cent over all batches, and how many resets there were."""
    right = images = resets = 0
    for batch, labels in batches:
        right += int((adapter(batch).argmax(1) == labels).sum())
        images += len(labels)
        resets += adapter.last is not None and adapter.last.reset_fraction > 0
    return 100 * right / images, resets


if __name__ == "__main__":
    main()
