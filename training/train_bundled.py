"""Train, export and measure the bundled networks.

    python training/train_bundled.py train bundled-resnet --data cifar --work checkpoints
    python training/train_bundled.py export bundled-resnet --work checkpoints
    python training/train_bundled.py evaluate --data cifar

`--data` is a folder that `tidefast.datasets.cifar10` reads; nothing is downloaded. `train` writes a checkpoint after
every epoch and, started again, continues from the last one: each epoch draws its randomness from its own number,
so that an interrupted run takes the same steps as an uninterrupted one.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import io
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from tidefast import datasets, models
from tidefast.core.files import write_atomically
from tidefast.datasets import ImageSet
from tidefast.models.bundled import Bundled

log = logging.getLogger("train_bundled")
PADDING = 4


@dataclass(frozen=True)
class Recipe:
    """How one network is trained."""

    epochs: int
    optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
    peak: float
    weight_decay: float
    warmup: float
    label_smoothing: float
    cutout: int
    average: float
    clip: float
    batch_size: int = 128


RECIPES = {
    "bundled-resnet": Recipe(
        epochs=40,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.0, momentum=0.9, nesterov=True),
        peak=0.2,
        weight_decay=5e-4,
        warmup=0.15,
        label_smoothing=0.05,
        cutout=0,
        average=0.998,
        clip=5.0,
    ),
    "bundled-vit": Recipe(
        epochs=30,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.99)),
        peak=2e-3,
        weight_decay=0.05,
        warmup=0.1,
        label_smoothing=0.1,
        cutout=0,
        average=0.998,
        clip=1.0,
    ),
}


def to_batch(images: np.ndarray[Any, Any] | Tensor) -> Tensor:
    """uint8 [N, H, W, 3] to float [N, 3, H, W] in [0, 1], in channels-last memory."""
    return torch.as_tensor(images).permute(0, 3, 1, 2).float().div_(255)


class Epochs:
    """The training images, shuffled, shifted, mirrored and partly covered, batch by batch."""

    def __init__(self, train: ImageSet, batch_size: int, cutout: int, seed: int) -> None:
        padding = ((0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0))
        self.images = torch.from_numpy(np.pad(train.images, padding, mode="reflect"))
        self.labels = torch.from_numpy(train.labels)
        self.batch_size = batch_size
        self.cutout = cutout
        self.seed = seed

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Every batch of one epoch, a function of (seed, epoch) alone."""
        generator = torch.Generator().manual_seed(self.seed * 100_003 + epoch)
        order = torch.randperm(len(self.labels), generator=generator)
        for k in range(len(self)):
            chosen = order[k * self.batch_size : (k + 1) * self.batch_size]
            yield self._augment(chosen, generator), self.labels[chosen]

    def _augment(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        n, side = len(chosen), self.images.shape[1] - 2 * PADDING
        line = torch.arange(side)
        rows, columns = (line + torch.randint(2 * PADDING + 1, (n, 1), generator=generator) for _ in range(2))
        mirrored = torch.rand(n, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
        batch = to_batch(self.images[chosen[:, None, None], rows[:, :, None], columns[:, None, :]])
        if self.cutout:
            top, left = (torch.randint(side - self.cutout + 1, (n, 1), generator=generator) for _ in range(2))
            high = (line >= top) & (line < top + self.cutout)
            wide = (line >= left) & (line < left + self.cutout)
            batch.masked_fill_((high[:, :, None] & wide[:, None, :])[:, None], 0.5)
        return batch


def rate(recipe: Recipe, progress: float) -> float:
    """The learning rate at `progress` in [0, 1]: a linear rise, then half a cosine down to zero."""
    if progress < recipe.warmup:
        return recipe.peak * progress / recipe.warmup
    return recipe.peak * 0.5 * (1 + math.cos(math.pi * (progress - recipe.warmup) / (1 - recipe.warmup)))


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices and kernels decay; biases, normalisation and positions do not."""
    named = list(network.named_parameters())
    decayed = [parameter for name, parameter in named if parameter.dim() > 1 and name != "position"]
    kept = [parameter for name, parameter in named if parameter.dim() <= 1 or name == "position"]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


@torch.no_grad()
def track(average: nn.Module, network: nn.Module, decay: float) -> None:
    """Move the averaged weights and statistics towards the current ones."""
    current = network.state_dict()
    for name, value in average.state_dict().items():
        if value.is_floating_point():
            value.lerp_(current[name], 1 - decay)
        else:
            value.copy_(current[name])


@torch.no_grad()
def accuracy(network: nn.Module, subset: ImageSet, batch_size: int = 500) -> float:
    """Share of right answers, in per cent."""
    network.eval()
    starts = range(0, len(subset), batch_size)
    predicted = torch.cat([network(to_batch(subset.images[k : k + batch_size])).argmax(1) for k in starts])
    return 100 * float((predicted.numpy() == subset.labels).mean())


def train(
    name: str,
    images: ImageSet,
    watched: ImageSet,
    work: Path,
    epochs: int | None = None,
    seed: int = 0,
    full_precision: bool = False,
) -> None:
    """Train one network, from its last checkpoint if there is one; no choice is made from the `watched` images."""
    recipe = RECIPES[name]
    epochs = epochs or recipe.epochs
    stream = Epochs(images, recipe.batch_size, recipe.cutout, seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = models.registry.get(name)().build()
    average = copy.deepcopy(network).eval()
    optimizer = recipe.optimizer(parameter_groups(network, recipe.weight_decay))

    path = work / f"{name}.pt"
    done = 0
    if path.is_file():
        saved = torch.load(path, weights_only=True)
        if (saved["epochs"], saved["seed"]) != (epochs, seed):
            raise SystemExit(
                f"{path} belongs to a run of {saved['epochs']} epochs with seed {saved['seed']}, "
                f"asked for {epochs} and {seed}: continue that one, or give another --work"
            )
        network.load_state_dict(saved["network"])
        average.load_state_dict(saved["average"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["done"]
    log.info("%s: epochs %d to %d, %d steps each", name, done + 1, epochs, len(stream))

    for epoch in range(done, epochs):
        start, total = time.perf_counter(), 0.0
        network.train()
        for k, (batch, labels) in enumerate(stream.batches(epoch)):
            step = epoch * len(stream) + k
            for group in optimizer.param_groups:
                group["lr"] = rate(recipe, (step + 1) / (epochs * len(stream)))
            with torch.autocast("cpu", torch.bfloat16, enabled=not full_precision):
                logits = network(batch)
            loss = functional.cross_entropy(logits.float(), labels, label_smoothing=recipe.label_smoothing)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
            optimizer.step()
            # A short memory at first: the average must not carry the initial weights along.
            track(average, network, min(recipe.average, (1 + step) / (10 + step)))
            total += loss.item()
        if not math.isfinite(total):
            raise SystemExit(f"{name}: the loss of epoch {epoch + 1} is {total}; the last checkpoint is {path}")
        content = {
            "done": epoch + 1,
            "epochs": epochs,
            "seed": seed,
            "network": network.state_dict(),
            "average": average.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_atomically(path, buffer.getvalue())
        seconds = time.perf_counter() - start
        right = f"{accuracy(average, watched):.2f}" if (epoch + 1) % 4 == 0 or epoch + 1 == epochs else "-"
        mean = total / len(stream)
        log.info("%s: epoch %d/%d loss %.4f test %s %.0f s", name, epoch + 1, epochs, mean, right, seconds)


def export(name: str, work: Path) -> None:
    """Write the averaged weights of the last checkpoint into the package, in half precision."""
    entry = models.registry.get(name)
    assert issubclass(entry, Bundled)
    saved = torch.load(work / f"{name}.pt", weights_only=True)
    halves = {
        key: (value.half() if value.is_floating_point() else value).contiguous()
        for key, value in saved["average"].items()
    }
    if not all(bool(value.isfinite().all()) for value in halves.values()):
        raise SystemExit(f"{name} does not fit half precision")
    path = Path(models.__file__).parent / entry.file
    write_atomically(path, safetensors.torch.save(halves))
    log.info("%s: epoch %d of %d exported", path.name, saved["done"], saved["epochs"])


def evaluate(data: Path | None, work: Path | None) -> None:
    """Log accuracy and file hash of every bundled network, and with `--work` that of the weights before rounding."""
    sets = {"bundled subset": datasets.bundled()}
    if data:
        sets["test split"] = datasets.cifar10(data, "test")
        sets["rest of the test split"] = sets["test split"][np.setdiff1d(np.arange(10_000), datasets.bundled().origins)]
    for name in RECIPES:
        entry = models.registry.get(name)
        assert issubclass(entry, Bundled)
        content = (Path(models.__file__).parent / entry.file).read_bytes()
        log.info("%s: %d bytes, sha256 %s", name, len(content), hashlib.sha256(content).hexdigest())
        networks = {"as bundled": models.load(name)}
        if work:
            networks["single precision"] = entry().build()
            networks["single precision"].load_state_dict(torch.load(work / f"{name}.pt", weights_only=True)["average"])
        for precision, network in networks.items():
            for title, subset in sets.items():
                log.info("%s, %s, %s (%d): %.2f %%", name, precision, title, len(subset), accuracy(network, subset))


def main() -> None:
    """Parse the command line and do one of the three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsers = parser.add_subparsers(dest="command", required=True)
    for command in ("train", "export"):
        sub = parsers.add_parser(command)
        sub.add_argument("name", choices=sorted(RECIPES))
        sub.add_argument("--work", type=Path, required=True, help="folder for checkpoints and logs")
        if command == "train":
            sub.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10")
            sub.add_argument("--epochs", type=int, help="instead of the recipe's")
            sub.add_argument("--seed", type=int, default=0)
            sub.add_argument("--full-precision", action="store_true", help="no bfloat16 in the forward pass")
    sub = parsers.add_parser("evaluate")
    sub.add_argument("--data", type=Path, help="folder with CIFAR-10, for the whole test split")
    sub.add_argument("--work", type=Path, help="folder with checkpoints, to compare with the weights before rounding")
    arguments = vars(parser.parse_args())

    torch.set_num_threads(1)
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    command = arguments.pop("command")
    if command == "train":
        arguments["work"].mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(arguments["work"] / f"{arguments['name']}.log"))
        data = arguments.pop("data")
        arguments |= {"images": datasets.cifar10(data, "train"), "watched": datasets.cifar10(data, "test")}
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", handlers=handlers)
    commands: dict[str, Callable[..., None]] = {"train": train, "export": export, "evaluate": evaluate}
    commands[command](**arguments)


if __name__ == "__main__":
    main()
