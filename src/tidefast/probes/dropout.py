"""Dropout in a network that has none: activations are dropped between its stages, or in front of the classifier."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from tidefast.core.mode import Mode
from tidefast.probes.features import head_of

DropoutPlace: TypeAlias = Literal["stages", "features"]
_STAGES = 4


class PlacedDropout(Mode):
    """Drops activations of a private network at places of its own, within `sampling` and nowhere else.

    >>> net = nn.Sequential(nn.Sequential(*(nn.Sequential(nn.Linear(64, 64)) for _ in range(2))), nn.Linear(64, 3))
    >>> dropout = PlacedDropout.of(net, "stages")
    >>> dropout.stages
    ('0.0', '0.1')
    >>> images = torch.rand(2, 64)
    >>> with dropout.sampling(0.5, torch.Generator().manual_seed(0)):
    ...     some = net(images)
    >>> torch.equal(net(images), some)
    False
    """

    def __init__(self, stages: tuple[str, ...]) -> None:
        self.stages = stages
        """Names of the modules whose outputs are dropped; where there are none, the input of the classifier head is."""
        self._rate = 0.0
        self._generator: torch.Generator | None = None

    @classmethod
    def of(cls, model: nn.Module, at: DropoutPlace) -> PlacedDropout:
        """That of a private model; its layers are watched from the first call on."""
        for hook in model._forward_pre_hooks.values():
            if isinstance(hook, cls):
                return hook
        dropout = cls(tuple(stages_of(model)) if at == "stages" else ())
        model.register_forward_pre_hook(dropout)
        for name in dropout.stages:
            model.get_submodule(name).register_forward_hook(dropout._after)
        if not dropout.stages:  # in front of what methods see of the features
            head_of(model)[1].register_forward_pre_hook(dropout._before, prepend=True)
        return dropout

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """The hook by which `of` finds this object again."""

    def sampling(self, rate: float, generator: torch.Generator) -> AbstractContextManager[None]:
        """Within the block every pass drops the share `rate`, each time another."""
        return self.during(_rate=rate, _generator=generator)

    def _after(self, module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> Tensor | None:
        if self._generator is None or not isinstance(outputs, Tensor):
            return None
        return dropped(outputs, self._rate, self._generator)

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._generator is None or not inputs:
            return None
        return dropped(inputs[0], self._rate, self._generator), *inputs[1:]


def dropped(activations: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """The share `rate` of activations becomes 0, the others grow to keep the mean; drawn on the CPU for any device.

    >>> dropped(torch.ones(4), 0.5, torch.Generator().manual_seed(0)).tolist()
    [0.0, 2.0, 0.0, 0.0]
    """
    kept = torch.rand(activations.shape, generator=generator) >= rate
    return activations * kept.to(activations.device) / (1.0 - rate)


def stages_of(model: nn.Module) -> list[str]:
    """The modules that end the stages of a network's trunk; empty where none can be told.

    The trunk is the outermost `nn.Sequential`s and `nn.ModuleList`s of two blocks or more (modules that have parts
    themselves), the classifier head not among them. Of several, each is a stage and its last block ends it, as
    `layer1` to `layer4` of a ResNet; of one, up to four of its blocks end a stage, at even distances, the last of
    them always.

    >>> block = lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    >>> stages_of(nn.Sequential(nn.Sequential(*(block() for _ in range(8))), nn.Linear(4, 3)))
    ['0.1', '0.3', '0.5', '0.7']
    """
    head, _ = head_of(model)
    trunk: list[list[str]] = []
    within: str | None = None
    for path, module in model.named_modules():
        if within is not None and path.startswith(within):
            continue
        if isinstance(module, (nn.Sequential, nn.ModuleList)) and len(module) > 1:
            blocks = [f"{path}.{name}".lstrip(".") for name, _ in module.named_children()]
            holds_head = any(head == block or head.startswith(f"{block}.") for block in blocks)
            if not holds_head and all(list(block.children()) for block in module.children()):
                trunk.append(blocks)
                within = f"{path}."
    if len(trunk) > 1:
        return [blocks[-1] for blocks in trunk]
    blocks = trunk[0] if trunk else []
    count = min(_STAGES, len(blocks))
    return [blocks[len(blocks) * (number + 1) // count - 1] for number in range(count)]
