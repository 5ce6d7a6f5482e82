"""Some classes of a classifier: the others' logits are left out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class SelectedClasses(nn.Module):
    """A classifier whose logits are those of `model` at `indices`, in that order; see `select_classes`."""

    indices: Tensor

    def __init__(self, model: nn.Module, indices: Sequence[int]) -> None:
        super().__init__()
        if not indices or min(indices) < 0 or len(set(indices)) != len(indices):
            raise ValueError(f"indices must be different numbers of classes, 0 or more, got {list(indices)}")
        self.model = model
        self.register_buffer("indices", torch.tensor(list(indices)), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        if logits.shape[1] <= int(self.indices.max()):
            raise ValueError(
                f"the model has {logits.shape[1]} classes, but class {int(self.indices.max())} is to be selected"
            )
        return logits.index_select(1, self.indices)


def select_classes(model: nn.Module, indices: Sequence[int]) -> nn.Module:
    """`model` with the logits of the classes at `indices` only, in that order: its label 0 is `indices[0]`.

    Losses and predictions see no other class. The parameters are those of `model` itself.

    >>> from tidefast.models import load
    >>> cats_and_dogs = select_classes(load("bundled-resnet"), [3, 5])
    >>> cats_and_dogs(torch.rand(4, 3, 32, 32)).shape
    torch.Size([4, 2])
    """
    return SelectedClasses(model, indices).train(model.training)
