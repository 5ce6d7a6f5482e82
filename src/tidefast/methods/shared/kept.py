"""What a method's forward works out beside its answer, kept for the loss of the same call."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from tidefast.probes.features import attach, head_of


class Kept(nn.Module):
    """Tensors that `Method.forward` leaves for `Method.loss`, attached to their graph.

    Another set of weights cannot run between a network's forward and its backward, so that a teacher's logits are
    there before the student's; this hands them on. A method calls `Kept.install` in `configure`.

    >>> net = nn.Sequential(nn.Linear(4, 3))
    >>> Kept.install(net)
    >>> Kept.of(net).keep(torch.ones(2), torch.zeros(2))
    >>> [tensor.tolist() for tensor in Kept.of(net).take()]
    [[1.0, 1.0], [0.0, 0.0]]
    """

    def __init__(self) -> None:
        super().__init__()
        self._tensors: tuple[Tensor, ...] = ()

    @classmethod
    def install(cls, model: nn.Module) -> None:
        """Give a private model a place to keep tensors."""
        attach(model, "kept", cls)

    @classmethod
    def of(cls, model: nn.Module) -> Kept:
        """That of a model that `install` was called on."""
        return cast(Kept, head_of(model)[1].get_submodule("kept"))

    def keep(self, *tensors: Tensor) -> None:
        """Leave tensors for `take`; without gradients no loss follows, and nothing is kept."""
        if torch.is_grad_enabled():
            self._tensors = tensors

    def take(self) -> tuple[Tensor, ...]:
        """What was kept last, given out once."""
        tensors, self._tensors = self._tensors, ()
        return tensors
