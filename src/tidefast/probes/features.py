"""Features: what the classifier head of a network is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tidefast.core.mode import Mode

M = TypeVar("M", bound=nn.Module)


class Features(Mode):
    """The input of the head, the last `nn.Linear` of a model, along with its answer.

    A method calls `Features.of(model)` in `configure`, which is before a compiled model is traced, and
    `Features.of(network.module).along(network, images)` in place of `network(images)`.

    >>> import torch
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 10))
    >>> features = Features.of(net)
    >>> logits, seen = features.along(net, torch.rand(4, 3, 2, 2))
    >>> features.name, logits.shape, seen.shape
    ('3', torch.Size([4, 10]), torch.Size([4, 5]))
    """

    def __init__(self, name: str) -> None:
        self.name = name
        """Of the head, within the model."""
        self._open: tuple[list[Tensor], ...] = ()  # one for each call of `along` that the program is in

    @classmethod
    def of(cls, model: nn.Module) -> Features:
        """The features of a private model; its head is watched from the first call on."""
        name, head = head_of(model)
        for hook in head._forward_pre_hooks.values():
            if isinstance(hook, cls):
                return hook
        features = cls(name)
        head.register_forward_pre_hook(features, with_kwargs=True)
        return features

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Called by the head before it runs."""
        for seen in self._open:
            seen[:] = [inputs[0] if inputs else named["input"]]

    def along(self, network: Callable[[Tensor], Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [batch, classes] of the network, and the features [batch, width] of that pass, with their graph.

        Where `network` runs several passes, those of the last one.
        """
        seen: list[Tensor] = []
        with self.during(_open=(*self._open, seen)):
            logits = network(images)
        if not seen:
            raise ValueError(
                f"the last linear layer, {self.name!r}, did not run; it must be the classifier head, and the model "
                "must call it as a module"
            )
        return logits, seen[0].flatten(1)


def head_of(model: nn.Module) -> tuple[str, nn.Linear]:
    """The classifier head, the last `nn.Linear` in module order that is not part of another, and its name.

    >>> head_of(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)))
    ('1', Linear(in_features=8, out_features=3, bias=True))
    """
    heads: list[tuple[str, nn.Linear]] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not (heads and name.startswith(f"{heads[-1][0]}.")):
            heads.append((name, module))
    if not heads:
        kinds = sorted({type(module).__name__ for module in model.modules() if not list(module.children())})
        raise ValueError(
            "features are the input of the last nn.Linear layer, and this network has none "
            f"(its layers: {', '.join(kinds)}); use a network with a linear classifier head"
        )
    return heads[-1]


def attach(model: nn.Module, name: str, make: Callable[[], M]) -> tuple[M, list[str]]:
    """Give a private network a module of the method's own, and the names of its parameters.

    It hangs below the classifier head, where no container would run it, and so comes last in the arena. Its random
    weights are the same whenever the same module is made.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    >>> projector, names = attach(net, "projector", lambda: nn.Linear(8, 2))
    >>> names, net(torch.rand(5, 4)).shape
    (['1.projector.weight', '1.projector.bias'], torch.Size([5, 3]))
    """
    path, head = head_of(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make()
    module.to(device=head.weight.device, dtype=head.weight.dtype).requires_grad_(False)
    head.add_module(name, module)
    below = f"{path}.{name}" if path else name
    return module, [f"{below}.{leaf}" for leaf, _ in module.named_parameters()]
