"""What the probabilities of adapted models are worth: calibration error, log likelihood, Brier score beside accuracy.

    python benchmarks/calibration.py --model bundled-resnet --out benchmarks/results/calibration-resnet.csv
    python benchmarks/calibration.py --model bundled-vit --out benchmarks/results/calibration-vit.csv
    python benchmarks/calibration.py --model bundled-lite0 --out benchmarks/results/calibration-lite0.csv

Each contestant sees a clean stream and one that drifts. "released": ROID's and CMF's answers on the scale of their
published code. The remedy: logits are divided by a temperature that was fitted on 512 labelled source images, held out
of the streams, "before" the stream and again "after" it, as the model answers them then.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import tidefast
from tidefast import datasets, models, streams
from tidefast.bench import calibration
from tidefast.streams import as_tensor

CONTESTANTS = [
    ("source", "never"),
    ("batchnorm", "never"),
    *((method, reset) for method in ("tent", "eta", "roid", "cmf") for reset in ("never", "asr")),
]
SETTINGS = {
    "bundled-resnet": ("bundled:part=held", {"clean": "clean", "drift": "drift"}, 120, 16, "adam:lr=1e-3"),
    "bundled-vit": ("bundled:part=held", {"clean": "clean", "drift": "drift"}, 120, 16, "adam:lr=1e-3"),
    "bundled-lite0": ("bundled-1k:part=held", {"clean": "clean-1k", "drift": "ccc-1k:level=medium"}, 24, 32, None),
}
"""Of each network: labelled source images, streams, batches, images a batch, and the optimiser."""
TEMPERATURES = torch.logspace(-1, 1, 81, dtype=torch.float64)


@dataclass
class Answers:
    """Logits and labels, all that were given."""

    logits: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """A batch more."""
        self.logits.append(logits.double())
        self.labels.append(labels)

    def measured(self, temperature: float = 1.0) -> dict[str, float]:
        """What they are worth once the logits are divided by a temperature."""
        logits, labels = torch.cat(self.logits) / temperature, torch.cat(self.labels)
        kept = calibration.kept_of(logits, labels)
        bins = (np.array(kept[f"bin_{name}"]) for name in ("images", "correct", "confidence"))
        worth = calibration.Reliability(*bins, kept["likelihood_loss"], kept["brier_score"])
        return {"accuracy": (logits.argmax(1) == labels).double().mean().item(), **worth.summary()}

    def best_temperature(self) -> float:
        """That with the smallest log likelihood loss."""
        logits, labels = torch.cat(self.logits), torch.cat(self.labels)
        losses = [torch.nn.functional.cross_entropy(logits / t, labels).item() for t in TEMPERATURES]
        return float(TEMPERATURES[int(np.argmin(losses))])


def main() -> None:
    """Write a line for each stream and contestant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SETTINGS, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="batches of a stream (default: as committed)")
    parser.add_argument("--seed", type=int, default=43)
    parser.add_argument("--streams", nargs="+", choices=("clean", "drift"), default=("clean", "drift"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    tidefast.keep_memory()
    rows = []
    for row in lines(options.model, options.steps, options.seed, options.streams):
        print(
            " ".join(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()), flush=True
        )
        rows.append({name: round(value, 5) if isinstance(value, float) else value for name, value in row.items()})
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def lines(model: str, steps: int | None, seed: int, chosen: Sequence[str]) -> Iterator[dict[str, str | float]]:
    """What is measured, contestant by contestant."""
    data, names, length, size, optimizer = SETTINGS[model]
    network, held = models.load(model), held_images(data)
    for title in chosen:
        stream = streams.make(names[title], part="stream", seed=seed, steps=steps or length, batch=size)
        batches = [(batch.images, batch.labels) for batch in stream]
        for method, reset in CONTESTANTS:
            adapter = tidefast.adapt(network, method, reset=reset, optimizer=optimizer)
            fresh = on_source(adapter, held, size).best_temperature()
            answers = Answers()
            for images, labels in batches:
                answers.add(adapter(images), labels)
            late = on_source(adapter, held, size).best_temperature()
            yield {
                "model": model,
                "stream": title,
                "method": method,
                "reset": reset,
                "batches": len(batches),
                **answers.measured(),
                **only("released", answers.measured(answers.logits[0].shape[1] if method in ("roid", "cmf") else 1.0)),
                "temperature before": fresh,
                **only("before", answers.measured(fresh)),
                "temperature after": late,
                **only("after", answers.measured(late)),
            }


def only(when: str, measured: dict[str, float]) -> dict[str, float]:
    """The two that a temperature is judged by."""
    return {f"{name} {when}": measured[name] for name in ("ece", "nll")}


def held_images(name: str, count: int = 512) -> tuple[Tensor, Tensor]:
    """Labelled images that no stream of `part="stream"` shows, in an order of chance."""
    data = datasets.open(name)
    chosen = np.random.default_rng(0).permutation(len(data.labels))[:count]
    return as_tensor(np.stack([data.images[at] for at in chosen])), torch.as_tensor(
        np.asarray(data.labels)[chosen]
    ).long()


def on_source(adapter: tidefast.Adapter, held: tuple[Tensor, Tensor], size: int) -> Answers:
    """What the model says of source images, as it is now, in batches as in the stream."""
    answers = Answers()
    for images, labels in zip(held[0].split(size), held[1].split(size), strict=True):
        answers.add(adapter.predict(images), labels)
    return answers


if __name__ == "__main__":
    main()
