"""What an adaptation step costs, as a ratio to the forward and backward passes that nobody can avoid."""

from __future__ import annotations

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tidefast import methods, resets
from tidefast.adapter import Adapter
from tidefast.core import losses
from tidefast.core.network import Network
from tidefast.core.state import State
from tidefast.core.step import Step
from tidefast.methods.base import Method
from tidefast.models.vit import SmallViT

CLASSES = 100
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ResNetShape:
    """A bottleneck residual network to measure on, and its input."""

    blocks: tuple[int, ...]
    width: int
    side: int
    """Height and width of the images."""
    batch: int
    large_stem: bool

    def network(self) -> nn.Module:
        """The network with random weights, in channels_last, which is the faster layout for it."""
        torch.manual_seed(0)
        kernel = 7 if self.large_stem else 3
        stem = nn.Conv2d(3, self.width, kernel, stride=2, padding=kernel // 2, bias=False)
        layers: list[nn.Module] = [stem, nn.BatchNorm2d(self.width), nn.ReLU()]
        layers += [nn.MaxPool2d(3, 2, 1)] if self.large_stem else []
        channels = self.width
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                inner = self.width * 2**stage
                layers.append(_Bottleneck(channels, inner, stride=2 if stage and not block else 1))
                channels = 4 * inner
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
        network = nn.Sequential(*layers, *head)
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # gap in stubs

    def images(self) -> Tensor:
        """One batch."""
        return torch.rand(self.batch, 3, self.side, self.side, generator=torch.Generator().manual_seed(0))


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != 4 * inner:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * inner, 1, stride, bias=False), nn.BatchNorm2d(4 * inner)
            )

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


@dataclass(frozen=True)
class TransformerShape:
    """A small vision transformer to measure on, and its input."""

    batch: int
    side: int = 32
    """Height and width of the images; it takes no others."""

    def network(self) -> nn.Module:
        """The network with random weights."""
        torch.manual_seed(0)
        return SmallViT(num_classes=CLASSES)

    def images(self) -> Tensor:
        """One batch."""
        return torch.rand(self.batch, 3, self.side, self.side, generator=torch.Generator().manual_seed(0))


SHAPES: dict[str, ResNetShape | TransformerShape] = {
    "resnet26-32px": ResNetShape(blocks=(2, 2, 2, 2), width=32, side=32, batch=64, large_stem=False),
    "resnet50-224px": ResNetShape(blocks=(3, 4, 6, 3), width=64, side=224, batch=8, large_stem=True),
    "vit-32px": TransformerShape(batch=64),
}


def methods_for(shape: ResNetShape | TransformerShape) -> list[str]:
    """The methods that run on a network."""
    every = isinstance(shape, TransformerShape)
    return [name for name, method in methods_measured().items() if every or not method.transformers_only]


def methods_measured() -> dict[str, Method]:
    """Every registered method, set so that all samples are selected."""
    registry = methods.base.registry
    return {name: registry.make(name, **registry.get(name).busiest) for name in registry.names()}


@dataclass(frozen=True)
class StepCost:
    """One method, with or without ASR, on one network."""

    name: str
    forwards: float
    """Unavoidable forward passes, in batches."""
    backwards: float
    seconds: float
    unavoidable: float
    """Seconds that those passes take on their own."""
    to_base: float
    """Step time relative to the same method without ASR."""
    peak_megabytes: float
    numbers_held: float
    """Relative to the network's own parameters and buffers."""


def measure(
    shape: ResNetShape | TransformerShape,
    names: Sequence[str],
    rounds: int = 7,
    device: torch.device = _CPU,
    progress: Callable[[str], None] = lambda message: None,
) -> tuple[list[StepCost], float | None]:
    """Rows for `names`, each plain and with ASR, and ASR's own bookkeeping relative to the ETA step (None without ETA).

    All sides take turns in one process, so that whatever else the machine does falls on all of them.
    """
    images = shape.images().to(device)
    chosen = methods_measured()
    adapters = {
        f"{name}{suffix}": _adapter(shape, shape.network().to(device), chosen[name], reset)
        for name in names
        for suffix, reset in (("", None), ("+asr", resets.ASR()))
    }
    plain = Network(shape.network().to(device), methods.Tent().configure)

    def forward() -> None:
        with torch.no_grad():
            plain(images)

    def forward_and_backward() -> None:
        plain.arena.zero_gradients()
        torch.autograd.backward(losses.entropy(plain(images)).mean())

    sides: dict[str, Callable[[], object]] = {"forward": forward, "forward+backward": forward_and_backward}
    sides |= {name: _caller(adapter, images) for name, adapter in adapters.items()}
    if device != _CPU:
        sides = {name: _whole(side) for name, side in sides.items()}
    times = alternate(sides, rounds, progress)
    median = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    for name, adapter in adapters.items():
        share = adapter.last.selected / len(images) if adapter.last else 0.0
        forwards, backwards = adapter.method.passes(share)
        forwards += name.endswith("+asr")
        progress(f"memory: {name}")
        peak, held = _memory_in_a_new_process(shape, name)
        unavoidable = backwards * median["forward+backward"] + (forwards - backwards) * median["forward"]
        base = median[name.removesuffix("+asr")]
        rows.append(StepCost(name, forwards, backwards, median[name], unavoidable, median[name] / base, peak, held))
    return rows, _bookkeeping(adapters["eta+asr"], images, rounds) / median["eta"] if "eta" in names else None


def alternate(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    progress: Callable[[str], None] = lambda message: None,
) -> dict[str, list[float]]:
    """Seconds of each side in each round; they take turns, and one more round before the first warms up.

    >>> {name: len(seconds) for name, seconds in alternate({"sum": lambda: sum(range(9))}, rounds=2).items()}
    {'sum': 2}
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, run in sides.items():
            progress(f"round {turn} of {rounds}: {name}")
            started = time.perf_counter()
            run()
            if turn:
                times[name].append(time.perf_counter() - started)
    return times


def _adapter(
    shape: ResNetShape | TransformerShape, model: nn.Module, method: Method, reset: resets.Reset | None
) -> Adapter:
    images = shape.images()
    labels = torch.arange(len(images)) % CLASSES
    source = (images, labels) if method.needs_source else None
    return Adapter(model, method, reset=reset, source=source, gather=1)  # a step each, whatever their number


def _caller(adapter: Adapter, images: Tensor) -> Callable[[], Tensor]:
    return lambda: adapter(images)


def _whole(side: Callable[[], object]) -> Callable[[], object]:
    """The same, until the device has done it."""

    def waited_for() -> None:
        side()
        torch.accelerator.synchronize()

    return waited_for


def _bookkeeping(adapter: Adapter, images: Tensor, rounds: int) -> float:
    """Seconds of everything ASR does in a step except the source model's forward pass."""
    logits = adapter.predict(images)
    arena, seconds = adapter.network.arena, []
    state = State(adapter.policy.fields(adapter.network, logits.shape[1]))
    state.update(adapter.state["reset"])
    for number in range(rounds):
        step = Step(number, images, logits, adapter.network, {}, seed=0, _source_logits={False: logits})
        started = time.perf_counter()
        with arena.holding(arena.source):  # the swap of parameters that the source's forward pass needs
            pass
        adapter.policy.adjust_gradient(step, state)
        adapter.policy.observe(step, state)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _memory_in_a_new_process(shape: ResNetShape | TransformerShape, name: str) -> tuple[float, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_memory, (shape, name))


def _memory(shape: ResNetShape | TransformerShape, name: str) -> tuple[float, float]:
    torch.set_num_threads(1)
    model = shape.network()
    method = methods_measured()[name.removesuffix("+asr")]
    policy = resets.ASR(alpha0=0.999) if name.endswith("+asr") else None  # resets at once: all averages exist
    adapter = _adapter(shape, model, method, policy)
    for _ in range(2):
        adapter(shape.images())
    own = sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
    return _peak_megabytes(), adapter.numbers_held() / own


def _peak_megabytes() -> float:
    """The most memory this process ever held; NaN where the system does not tell."""
    status = Path("/proc/self/status")  # getrusage would include the parent's peak
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), math.nan)


def table(rows: Sequence[StepCost]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| step | forwards | backwards | time / unavoidable | time / plain method | numbers held / network | MB |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        yield (
            f"| {row.name} | {row.forwards:.2f} | {row.backwards:.2f} | {row.seconds / row.unavoidable:.2f} "
            f"| {row.to_base:.2f} | {row.numbers_held:.3f} | {row.peak_megabytes:.0f} |"
        )
