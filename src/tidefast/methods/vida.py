"""ViDA: a narrow and a wide adapter beside many layers; the teacher's uncertainty shifts weight between the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from tidefast.augment.colour import COLOUR_AFFINE_BLUR, call_augmentation
from tidefast.core.constraints import Count, CountOrZero, NonNegative, Share
from tidefast.core.mode import Mode
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State, Value
from tidefast.core.step import Forward, Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.shared.layer_rates import spread
from tidefast.methods.shared.teacher import MeanTeacher, drawn

_UNCERTAINTY_SCALE = 0.1
_START = "start"


class Scales(NamedTuple):
    """s1 and s2: how much the narrow and the wide adapters count."""

    low: float = 1.0
    high: float = 1.0


@registry.register("vida")
@dataclass(frozen=True)
class ViDA(MeanTeacher):
    """L = mean_i SCE(z_i, t_i), t the teacher's logits, in a network whose weights W became W + s1 U1 D1 + s2 U2 D2.

    u is 0.1 x the mean variance of the teacher's logits over augmented views. From `uncertainty` on the wide
    adapters (U2 D2) count 1 + u and the narrow ones (U1 D1) 1 - u, below it the other way round. All parameters adapt.
    """

    about: ClassVar[About] = About(
        title="ViDA",
        family="With a teacher",
        adapts="all weights, adapters",
        equation=r"""
        W \to W + s_1 U_1 D_1 + s_2 U_2 D_2, \qquad u = 0.1 \cdot \overline{\operatorname{Var}}_v\, t(v), \qquad
        (s_1, s_2) = \begin{cases} (1 - u,\, 1 + u) & u \ge \Theta \\ (1 + u,\, 1 - u) & u < \Theta \end{cases}

        L = \frac1B \sum_i \tfrac12\left[ H(t_i, z_i) + H(z_i, t_i) \right], \qquad
        \xi \leftarrow m\,\xi + (1-m)\,\theta
        """,
        paper=Paper(
            "Liu and others",
            "ViDA: Homeostatic Visual Domain Adapter for Continual Test Time Adaptation",
            "ICLR 2024",
            code="Yangsenqiao/vida",
        ),
        needs="images [batch, channels, height, width]",
    )
    quick: ClassVar[Mapping[str, Any]] = {"views_compared": 2, "warmup_steps": 2}

    prepared_with: ClassVar[tuple[str, ...]] = ("low_rank", "high_rank", "warmup_steps", "warmup_rate")

    low_rank: Count = 1
    """Of the narrow adapters."""
    high_rank: Count = 128
    """At most the smaller width of the layer."""
    uncertainty: NonNegative = 0.2
    """Theta: from here on the wide adapters count more."""
    views_compared: Annotated[int, Ge(2)] = 10
    """Augmented views over which the teacher's logits vary."""
    scale_high: bool = True
    """False: s2 stays 1, as in the published code, whose setter misses it."""
    adapter_momentum: Share = 0.8
    """m of the adapters; `teacher_momentum` is that of the backbone."""
    adapter_rate: NonNegative = 0.4
    """Learning rate of the adapters as a multiple of the optimiser's, which is the backbone's."""
    restore: Share = 0.0
    """Probability by which each parameter of the student returns to its start after a step; 0.1 on CIFAR."""
    warmup_steps: CountOrZero = 100
    """Batches of source data on which the adapters learn before the stream. At 0 no source data is needed, and they
    start without effect."""
    warmup_rate: NonNegative = 1e-4
    """Learning rate of the warm-up, which is Adam's."""

    @classmethod
    def for_cifar(cls, num_classes: int = 10, **changes: Any) -> ViDA:
        """The published settings for CIFAR-10 and CIFAR-100; the optimiser there is Adam with 1e-4 and 3e-4."""
        rate = 0.1 if num_classes < 50 else 1 / 300
        cifar = {"uncertainty": 0.05, "adapter_momentum": 0.999, "adapter_rate": rate, "restore": 0.1}
        return cls(**{**cifar, "symmetric": False, **changes})

    @property
    def needs_source(self) -> str | None:
        return "labelled source images, for the warm-up of its adapters" if self.warmup_steps > 0 else None

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_batch()
        return insert_adapters(model, self.low_rank, self.high_rank)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=5e-7, momentum=0.9, nesterov=True)

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        arena, learning = network.arena, _either(network, 0.0, 1.0)
        optimizer = torch.optim.Adam([arena.parameter], lr=self.warmup_rate)
        for _, (images, labels) in zip(range(self.warmup_steps), source.endless(labelled=True), strict=False):
            assert labels is not None
            arena.zero_gradients()
            torch.autograd.backward(functional.cross_entropy(network(images), labels))
            arena.gradients.mul_(learning)
            optimizer.step()
        return {_START: arena.values.clone()}

    def start(self, constants: Mapping[str, Tensor]) -> Tensor | None:
        return constants.get(_START)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        return [
            *super().fields(network, num_classes),
            Field("low", lambda: 1.0),
            Field("high", lambda: 1.0),
            # What the next batch's views are drawn from: `forward` sees no step.
            Field("draw", lambda: 0, lifetime="stream"),
            # Set and used within one step, so never in a snapshot: where the optimiser started from.
            Field("before", lambda: None, shape=(len(network.arena),)),
        ]

    def forward(self, network: Network, images: Tensor, state: State) -> Forward:
        allotment = Allotment.of(network)
        with self.teaching(network, state):
            with allotment.giving(Scales(state.number("low"), state.number("high"))):
                scales = self.scales(self._uncertainty_of(network, images, int(state.number("draw"))))
            with allotment.giving(scales):
                return Forward(network(images), for_loss=scales)

    def _uncertainty_of(self, network: Network, images: Tensor, draw: int) -> float:
        """u: how much the logits depend on the view, on average over images and classes."""
        generator, augment = torch.Generator().manual_seed(draw), self.augment or COLOUR_AFFINE_BLUR
        logits = [network(call_augmentation(augment, images, generator)) for _ in range(self.views_compared)]
        return _UNCERTAINTY_SCALE * float(torch.stack(logits).var(0).mean())

    def scales(self, uncertainty: float) -> Scales:
        """How much the narrow and the wide adapters count for a batch of this uncertainty.

        >>> ViDA().scales(0.5), ViDA().scales(0.125), ViDA(scale_high=False).scales(0.5)
        (Scales(low=0.5, high=1.5), Scales(low=1.125, high=0.875), Scales(low=0.5, high=1.0))
        """
        gain = uncertainty if uncertainty >= self.uncertainty else -uncertainty
        return Scales(1.0 - gain, 1.0 + gain if self.scale_high else 1.0)

    def loss(self, step: Step, state: State) -> Objective:
        scales = step.from_forward(Scales)
        with Allotment.of(step.network).giving(scales):
            logits = step.network(step.images)
        draw = int(torch.randint(2**31, (), generator=step.generator))
        before = step.network.arena.values.clone()
        updates: dict[str, Value] = {**scales._asdict(), "draw": draw, "before": before}
        return Objective(self.divergence(logits, step.logits).mean(), selected=len(logits), updates=updates)

    def after_step(self, step: Step, state: State) -> None:
        network, arena = step.network, step.network.arena
        arena.assign(torch.lerp(state.tensor("before"), arena.values, _either(network, 1.0, self.adapter_rate)))
        state["before"] = None
        pace = _either(network, 1.0 - self.teacher_momentum, 1.0 - self.adapter_momentum)
        state.tensor("teacher").lerp_(arena.values, pace)
        if self.restore > 0:
            arena.assign(torch.where(drawn(arena, self.restore, step.generator), arena.source, arena.values))

    def passes(self, selected: float) -> tuple[float, float]:
        return self.views_compared + 2.0, 1.0  # the views and the batch by the teacher, the batch by the student


class Allotment(Mode):
    """How much the narrow and the wide adapters of one network count: 1 and 1, but within `giving`."""

    def __init__(self) -> None:
        self.scales = Scales()
        """Those in force."""

    @classmethod
    def of(cls, network: Network) -> Allotment:
        """That of a network with adapters."""
        return next(module.allotment for module in network.module.modules() if isinstance(module, Adapters))

    def giving(self, scales: Scales) -> AbstractContextManager[None]:
        """Within the block the adapters count as much as `scales` says."""
        return self.during(scales=scales)


class Adapters(nn.Module):
    """A weight W [rows, columns, ...] becomes W + s1 U1 D1 + s2 U2 D2; U starts at 0.

    A layer that is linear in its weight then computes W x + s1 U1 (D1 x) + s2 U2 (D2 x), with D a layer of the same
    geometry to as many channels as its rank, and U one of 1 x 1.

    >>> adapters = Adapters(torch.eye(4), (1, 128), Allotment(), torch.Generator())
    >>> adapters.low_down.shape, adapters.high_up.shape, torch.equal(adapters(torch.eye(4)), torch.eye(4))
    (torch.Size([1, 4]), torch.Size([4, 4]), True)
    """

    def __init__(
        self, weight: Tensor, ranks: tuple[int, int], allotment: Allotment, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.allotment = allotment
        low, high = (min(rank, *weight.shape[:2]) for rank in ranks)
        rows, columns = weight.flatten(1).shape

        def down(rank: int) -> nn.Parameter:
            return nn.Parameter((torch.randn(rank, columns, generator=generator) / rank**2).to(weight))

        self.low_down, self.low_up = down(low), nn.Parameter(weight.new_zeros(rows, low))
        self.high_down, self.high_up = down(high), nn.Parameter(weight.new_zeros(rows, high))

    def forward(self, weight: Tensor) -> Tensor:
        low, high = self.allotment.scales
        change = torch.addmm(self.low_up @ self.low_down, self.high_up, self.high_down, beta=low, alpha=high)
        return weight + change.view(weight.shape)


def insert_adapters(model: nn.Module, low_rank: int, high_rank: int) -> list[str]:
    """Put adapters beside layers of a private network; the names of all its parameters, each layer's adapters after it.

    They go to the linear layers of attention modules; where there are none, to the ungrouped convolutions but the
    first; where there are none either, to the linear layers but the last, which is the head.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, bias=False), nn.Flatten(), nn.Linear(4, 2))
    >>> [name.removeprefix("1.parametrizations.weight.") for name in insert_adapters(model, 1, 128)]
    ['0.weight', '0.bias', 'original', '0.low_down', '0.low_up', '0.high_down', '0.high_up', '3.weight', '3.bias']
    """
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    chosen = [name for name in _attention(model) or _convolutions(model) or _linear(model) if name in names]
    if not chosen:
        raise ValueError(
            "ViDA puts adapters beside the linear layers of attention modules, convolutions but the first, or linear "
            "layers but the head, and this network has none; use the method 'cotta'"
        )
    allotment, generator = Allotment(), torch.Generator().manual_seed(0)
    beside: dict[str, list[str]] = {}
    for name in chosen:
        path, _, leaf = name.rpartition(".")
        layer = model.get_submodule(path)
        adapters = Adapters(layer.get_parameter(leaf), (low_rank, high_rank), allotment, generator)
        parametrize.register_parametrization(layer, leaf, adapters.requires_grad_(False))
        below = f"{path}.parametrizations.{leaf}" if path else f"parametrizations.{leaf}"
        beside[name] = [f"{below}.original", *(f"{below}.0.{own}" for own, _ in adapters.named_parameters())]
    return [new for name in names for new in beside.get(name, [name])]


def _attention(model: nn.Module) -> list[str]:
    """Weights of the linear layers inside attention modules, and PyTorch's fused projections."""
    names: dict[str, None] = {}
    for path, module in model.named_modules():
        if "Attention" in type(module).__name__:
            prefix = f"{path}." if path else ""
            if isinstance(module, nn.MultiheadAttention):
                names |= dict.fromkeys(f"{prefix}{kind}_proj_weight" for kind in ("in", "q", "k", "v"))
            inner = (below for below, part in module.named_modules() if below and isinstance(part, nn.Linear))
            names |= dict.fromkeys(f"{prefix}{below}.weight" for below in inner)
    return list(names)


def _convolutions(model: nn.Module) -> list[str]:
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    layers = [(path, module) for path, module in model.named_modules() if isinstance(module, kinds)]
    return [f"{path}.weight" for path, module in layers[1:] if module.groups == 1]


def _linear(model: nn.Module) -> list[str]:
    return [f"{path}.weight" for path, module in model.named_modules() if isinstance(module, nn.Linear)][:-1]


def _either(network: Network, backbone: float, adapters: float) -> Tensor:
    """One number for the parameters of the backbone and another for those of the adapters [len(arena)]."""
    owners = (network.module.get_submodule(span.name.rpartition(".")[0]) for span in network.arena.tensors)
    numbers = [adapters if isinstance(owner, Adapters) else backbone for owner in owners]
    return spread(network.arena, network.arena.values.new_tensor(numbers))
