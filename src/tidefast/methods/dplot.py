"""DPLOT: blocks that may change freely follow the entropy, all layers follow a teacher that sees mirrored pairs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tidefast.core import losses
from tidefast.core.arena import Arena
from tidefast.core.constraints import Count, CountOrZero, NonNegative, Share
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State, Value
from tidefast.core.step import Objective, Step
from tidefast.methods.about import About, Paper
from tidefast.methods.base import registry
from tidefast.methods.shared.contrastive import class_means
from tidefast.methods.shared.warmup import Pair, WarmTeacher
from tidefast.probes.features import head_of

_DECAYS = 0.9, 0.999
_SELECTED = "selected_blocks"


@registry.register("dplot")
@dataclass(frozen=True)
class DPLOT(WarmTeacher):
    """L1 = mean H(Z), for the selected blocks alone; L2 = mean_i SCE(z_i, t_i) + SCE(z'_i, t_i), for all parameters.

    z and z' are the student's logits of the images and of their mirror images, one batch Z of both; t is the mean of
    the teacher's two. Both gradients are of the same forward. The selected blocks take a step of Adam along L1's, all
    parameters one of the optimiser's along L2's. Selected are blocks whose training on noisy source images
    leaves the source's class prototypes where they were.
    """

    about: ClassVar[About] = About(
        title="DPLOT",
        family="With a teacher",
        adapts="all weights",
        equation=r"""
        L_1 = \frac1{2B} \sum_i \left[ H(z_i) + H(z'_i) \right], \qquad
        L_2 = \frac1B \sum_i \left[ \mathrm{SCE}(z_i, \bar t_i) + \mathrm{SCE}(z'_i, \bar t_i) \right], \qquad
        \bar t_i = \tfrac12 (t_i + t'_i)
        """,
        paper=Paper(
            "Yu and others",
            "Domain-Specific Block Selection and Paired-View Pseudo-Labeling for Online Test-Time Adaptation",
            "CVPR 2024",
            code="gist-ailab/domain-specific-block-selection-and-paired-view-pseudo-labeling-for-online-TTA",
        ),
        needs="a linear classifier head",
    )

    prepared_with: ClassVar[tuple[str, ...]] = (
        *WarmTeacher.prepared_with,
        *("blocks", "block_threshold", "block_rate", "noise", "prototype_batches", "training_batches", "warmup_rate"),
    )

    augment: None = field(default=None, init=False)  # the second view is always the mirror image
    blocks: tuple[str, ...] | None = None
    """Names of the modules to select from; None: those that `block_names` finds; (): no block follows L1."""
    block_threshold: Share = 0.75
    """Blocks are selected whose score, scaled to [0, 1], is above it."""
    block_rate: NonNegative = 1e-3
    """Learning rate of Adam on blocks, in the stream and for their selection."""
    noise: NonNegative = 0.5
    """Deviation of the noise on the source images that blocks are tried with."""
    prototype_batches: Count = 501
    """Source batches behind the prototypes, at most; they are computed once, and once more for each block."""
    training_batches: CountOrZero = 2001
    """Source batches that each block is trained on for its score, at most. At 0 all blocks are selected, untried."""
    warmup_rate: NonNegative = 1e-3
    """Learning rate of Adam at the end of the warm-up."""

    @property
    def _selects(self) -> bool:
        return self.training_batches > 0 and self.blocks != ()

    @property
    def needs_source(self) -> str | None:
        if self._selects:
            return "labelled source images in random order"
        return "source images, unlabelled" if self.warmup_samples else None

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        super().configure(model, statistics)
        names = [name for name, _ in model.named_parameters()]
        for block in self._candidates(model):
            if not any(name.startswith(f"{block}.") for name in names):
                raise ValueError(f"blocks names {block!r}, and this network has no module of that name with parameters")
        return names

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-4)

    def warmup_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.warmup_rate)

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        selected = {_SELECTED: self._select(network, source)} if self._selects else {}
        return selected | self.warm_up(network, source)

    def _candidates(self, model: nn.Module) -> Sequence[str]:
        return block_names(model) if self.blocks is None else self.blocks

    def _select(self, network: Network, source: SourceData) -> Tensor:
        """Which of the candidates are selected, by their places [selected]."""
        before, seen = self._class_means(network, source)
        scores = []
        for block in self._candidates(network.module):
            self._train(network, source, spans_of(network.arena, block))
            after, seen_after = self._class_means(network, source)
            network.arena.restore()
            both = seen & seen_after
            scores.append(functional.cosine_similarity(before[both], after[both]).mean())
        return (losses.rescale(torch.stack(scores)) > self.block_threshold).nonzero()[:, 0]

    def _class_means(self, network: Network, source: SourceData) -> tuple[Tensor, Tensor]:
        return class_means(network, itertools.islice(source.labelled(), self.prototype_batches))

    def _train(self, network: Network, source: SourceData, spans: Sequence[slice]) -> None:
        """Minimise the entropy of noisy source images over one block; every block sees the same noise."""
        arena, generator = network.arena, torch.Generator().manual_seed(0)
        parts = [nn.Parameter(arena.values[span]) for span in spans]
        for part, span in zip(parts, spans, strict=True):
            part.grad = arena.gradients[span]
        optimizer = torch.optim.Adam(parts, lr=self.block_rate)
        for images in itertools.islice(source, self.training_batches):
            noise = torch.randn(images.shape, generator=generator, dtype=images.dtype).to(images.device)
            arena.zero_gradients()
            torch.autograd.backward(losses.entropy(network(images + self.noise * noise)).mean())
            optimizer.step()

    def _spans(self, network: Network) -> list[slice]:
        """Where the selected blocks lie in the arena."""
        candidates = self._candidates(network.module)
        if _SELECTED in network.constants:
            candidates = [candidates[place] for place in network.constants[_SELECTED].tolist()]
        return [span for block in candidates for span in spans_of(network.arena, block)]

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        count = sum(span.stop - span.start for span in self._spans(network))
        like = network.arena.values
        # Adam's memory on the blocks. Its step count is one for all, so that a reset, even of some layers, clears it.
        adam = [
            Field("block_mean", lambda: like.new_zeros(count)),
            Field("block_square", lambda: like.new_zeros(count)),
            Field("block_steps", lambda: 0),
        ]
        return [*super().fields(network, num_classes), *(adam if count else [])]

    def shown(self, images: Tensor) -> Tensor:
        if images.dim() != 4:
            raise ValueError(f"DPLOT mirrors images [batch, channels, height, width], got shape {tuple(images.shape)}")
        return torch.cat([images, images.flip(3)])

    def gradient(self, step: Step, state: State) -> Objective:
        student, teacher, _ = step.from_forward(Pair)
        target = torch.stack(teacher.chunk(2)).mean(0)
        loss = torch.stack([self.divergence(view, target).mean() for view in student.chunk(2)]).sum()
        arena, spans, updates = step.network.arena, self._spans(step.network), {}
        if spans:
            step.backward(losses.entropy(student).mean(), retain_graph=True)
            gradient = torch.cat([arena.gradients[span] for span in spans])
            if not torch.isfinite(gradient.sum()):
                return Objective(loss=gradient.sum(), selected=0)  # for the adapter to refuse
            updates = _moments(gradient, state)
            arena.zero_gradients()
        step.backward(loss)
        return Objective(loss, selected=len(step.logits), updates=updates)

    def after_step(self, step: Step, state: State) -> None:
        arena, spans = step.network.arena, self._spans(step.network)
        if spans:
            change = _adam_change(state, self.block_rate)
            for span, part in zip(spans, torch.split(change, [s.stop - s.start for s in spans]), strict=True):
                arena.values[span].sub_(part)
        super().after_step(step, state)

    def passes(self, selected: float) -> tuple[float, float]:
        return 4.0, 2.0 if self.blocks == () else 4.0  # each on the images and their mirror images


def _moments(gradient: Tensor, state: State) -> dict[str, Value]:
    """Adam's averages of the gradient and of its square, one step on."""
    return {
        "block_mean": state.tensor("block_mean").lerp(gradient, 1.0 - _DECAYS[0]),
        "block_square": state.tensor("block_square").lerp(gradient.square(), 1.0 - _DECAYS[1]),
        "block_steps": int(state.number("block_steps")) + 1,
    }


def _adam_change(state: State, rate: float) -> Tensor:
    """What Adam subtracts from the parameters, from averages that hold this step's gradient."""
    steps = int(state.number("block_steps"))
    root = (state.tensor("block_square") / (1.0 - _DECAYS[1] ** steps)).sqrt_()
    return rate / (1.0 - _DECAYS[0] ** steps) * state.tensor("block_mean") / root.add_(1e-8)


def block_names(model: nn.Module) -> list[str]:
    """The blocks of a network, from input to output: the outermost elements of its sequences that have parameters.

    A sequence is an `nn.Sequential` or `nn.ModuleList`. The classifier head is no block; a single element, such as a
    whole network behind a normalisation of its input, is looked into.

    >>> stage = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    >>> block_names(nn.Sequential(nn.Identity(), stage, nn.Flatten(), nn.Linear(3, 2)))
    ['1.0', '1.2']
    """
    head, blocks = head_of(model)[0], [""]
    while len(blocks) == 1:
        deeper = [name for name in _elements(model.get_submodule(blocks[0]), blocks[0]) if name != head]
        if not deeper:
            break
        blocks = deeper
    if blocks == [""]:
        raise ValueError(
            "DPLOT looks for blocks in nn.Sequential and nn.ModuleList, and this network has none: name its blocks, as "
            "in blocks=('layer1', 'layer2')"
        )
    return blocks


def _elements(module: nn.Module, name: str) -> list[str]:
    """Names of the outermost elements of sequences in `module`, which is called `name`, that have parameters."""
    elements = []
    for leaf, child in module.named_children():
        path = f"{name}.{leaf}" if name else leaf
        if not isinstance(module, (nn.Sequential, nn.ModuleList)):
            elements += _elements(child, path)
        elif next(child.parameters(), None) is not None:
            elements.append(path)
    return elements


def spans_of(arena: Arena, block: str) -> list[slice]:
    """Where the parameters of a block lie in the arena, neighbours joined."""
    spans: list[slice] = []
    for tensor in arena.tensors:
        if tensor.name.startswith(f"{block}."):
            if spans and spans[-1].stop == tensor.start:
                spans[-1] = slice(spans[-1].start, tensor.stop)
            else:
                spans.append(slice(tensor.start, tensor.stop))
    return spans
