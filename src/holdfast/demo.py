"""The demonstration: several methods side by side on a drifting stream of handwritten digits."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from holdfast import methods, resets
from holdfast.adapter import Adapter
from holdfast.methods.base import Method
from holdfast.resets.base import Reset
from holdfast.validation import require_count

CONTESTANTS: dict[str, tuple[Method, Reset]] = {
    "source": (methods.Source(), resets.Never()),
    "batchnorm": (methods.BatchNorm(), resets.Never()),
    "tent": (methods.Tent(), resets.Never()),
    "eta": (methods.ETA.for_classes(10), resets.Never()),
    "eta + rdumb": (methods.ETA.for_classes(10), resets.Periodic(every=150)),
    "eta + asr": (methods.ETA.for_classes(10), resets.ASR()),
    "roid": (methods.ROID(), resets.Never()),
    "roid + asr": (methods.ROID(), resets.ASR()),
}
OPTIMIZER = functools.partial(torch.optim.Adam, lr=2e-2)  # high enough that unprotected methods collapse in minutes


def run(steps: int, batch: int, seed: int) -> dict[str, list[float]]:
    """Train a small network, adapt it with every contestant to one stream, print accuracies per quarter."""
    require_count("--steps", steps, low=8)
    require_count("--batch", batch, low=2)
    torch.set_num_threads(1)  # more threads only slow down a network this small
    console = Console()
    images, labels = digits()
    half = len(images) // 2
    with console.status("training a small network on half of the digits"):
        network = train(images[:half], labels[:half], seed)
        clean = (network(images[half:]).argmax(1) == labels[half:]).double().mean().item()
    console.print(f"{half} images to train on; {clean:.1%} correct on the other {len(images) - half}, undisturbed.")
    console.print(f"Stream: {steps} batches of {batch}; noise, fading and haze come, grow, mix and come back.\n")

    table = Table("method", *(f"quarter {n}" for n in (1, 2, 3, 4)), "overall", "resets", title="accuracy, %")
    results = {}
    for name, (method, policy) in CONTESTANTS.items():
        adapter = Adapter(network, method, reset=policy, optimizer=OPTIMIZER, num_classes=10, seed=seed)
        correct, count = [], 0
        batches = stream(images[half:], labels[half:], steps, batch, seed)
        for shown, truth in track(batches, name, total=steps, console=console, transient=True):
            correct.append((adapter(shown).argmax(1) == truth).double().mean().item())
            count += adapter.last is not None and adapter.last.reset_fraction > 0
        quarters = [100 * float(np.mean(part)) for part in np.array_split(correct, 4)]
        results[name] = quarters
        table.add_row(name, *(f"{q:.1f}" for q in quarters), f"{100 * np.mean(correct):.1f}", str(count))
    console.print(table)
    return results


def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's handwritten digits, shuffled: images [1797, 1, 16, 16] in [0, 1] and labels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the demo needs scikit-learn's digits: pip install 'holdfast[demo]'") from error
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = torch.tensor(bunch.images[order] / 16.0, dtype=torch.float32)[:, None]
    return nn.functional.interpolate(images, 16, mode="bilinear"), torch.tensor(bunch.target[order])


def train(images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """A small BatchNorm network, trained for a few seconds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
        network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
        for _ in range(12):
            for chosen in torch.split(torch.randperm(len(images)), 64):
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(network(images[chosen]), labels[chosen]))
                optimizer.step()
    return network.eval()


def stream(images: Tensor, labels: Tensor, steps: int, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches under three disturbances whose strengths wax and wane at different speeds."""
    generator = torch.Generator().manual_seed(seed + 1)
    for step in range(steps):
        noise, fading, haze = (max(0.0, math.sin(2 * math.pi * (step / period + 0.1))) for period in (170, 230, 310))
        chosen = torch.randint(len(images), (batch,), generator=generator)
        shown = images[chosen] * (1 - 0.8 * fading) + 0.5 * haze
        shown = shown + 0.6 * noise * torch.randn(shown.shape, generator=generator)
        yield shown.clamp(0.0, 1.0), labels[chosen]
