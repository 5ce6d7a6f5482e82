"""Modes: what a private network does otherwise within a block of the program, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class Mode:
    """Base of what watches or changes the passes of a network, by hooks or by layers of its own.

    Its attributes change within `during` only, so a network knows what to return to when an interrupt came between.

    >>> class Gain(Mode):
    ...     def __init__(self):
    ...         self.factor = 1.0
    >>> gain = Gain()
    >>> with gain.during(factor=2.0):
    ...     gain.factor
    2.0
    >>> gain.factor
    1.0
    """

    @contextmanager
    def during(self, **values: Any) -> Iterator[None]:
        """Within the block these attributes have other values."""
        outer = {name: vars(self)[name] for name in values}
        try:
            vars(self).update(values)
            yield
        finally:
            vars(self).update(outer)


def modes_of(model: nn.Module) -> list[Mode]:
    """Those that a model has as hooks, as owners of hooks, or as attributes of its layers."""
    modes: dict[int, Mode] = {}
    for module in model.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        for candidate in [*(getattr(hook, "__self__", hook) for hook in hooks), *vars(module).values()]:
            if isinstance(candidate, Mode):
                modes[id(candidate)] = candidate
    return list(modes.values())
