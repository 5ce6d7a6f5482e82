"""What LAW and PALM share: convolutions adapt too, and every tensor learns at a rate of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tidefast.augment.colour import COLOUR_AFFINE_BLUR, call_augmentation
from tidefast.core import losses
from tidefast.core.arena import Arena
from tidefast.core.constraints import NonNegative
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics, is_normalization
from tidefast.core.state import Field, State, Value
from tidefast.core.step import Objective, Step
from tidefast.methods.base import Method


@dataclass(frozen=True)
class LayerRates(Method):
    """L = mean H(z) + consistency_weight x C x mean CE(z, z of the augmented image), C the number of classes.

    A first backward, of another loss (`probe`), measures each tensor; from that come the rates by which the
    optimiser's change of each tensor is multiplied. The default optimiser is Adam begun anew in every step, which moves
    each number by learning_rate x g / (|g| + 1e-8).
    """

    learning_rate: NonNegative = 2e-4
    """Of the default optimiser, at a rate of 1."""
    weight_decay: NonNegative = 0.0
    """Of the default optimiser."""
    consistency_weight: NonNegative = 0.01
    """Times the number of classes. At 0 there is no augmented view."""
    augment: Callable[..., Tensor] | None = None
    """A callable on a batch in [0, 1]; None: colour jitter, small affine motion, flip, slight blur and noise."""

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        statistics.use_batch()
        names = [
            f"{path}.{leaf}" if path else leaf
            for path, module in model.named_modules()
            if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) or is_normalization(module)
            for leaf, parameter in module._parameters.items()
            if parameter is not None
        ]
        if not names:
            raise ValueError(
                f"{type(self).__name__} adapts convolutions and normalisation layers, and this network has neither; "
                "use the method 'source'"
            )
        return names

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        adam = torch.optim.Adam(parameters, lr=self.learning_rate, weight_decay=self.weight_decay)
        adam.register_step_post_hook(lambda optimizer, args, kwargs: optimizer.state.clear())
        return adam

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        # Set and used within one step, so never in a snapshot: where the optimiser started from.
        return [Field("before", lambda: None, shape=(len(network.arena),))]

    def probe(self, logits: Tensor) -> Tensor:
        """The loss whose gradient tells how fast each tensor may learn."""
        raise NotImplementedError(f"{type(self).__name__} must define probe()")

    def measure(self, arena: Arena, state: State) -> dict[str, Value]:
        """New state from the gradient of `probe`, which is in the arena."""
        raise NotImplementedError(f"{type(self).__name__} must define measure()")

    def rates(self, arena: Arena, state: State) -> Tensor:
        """What the change of each adapted number is multiplied by [len(arena)]."""
        raise NotImplementedError(f"{type(self).__name__} must define rates()")

    def entropy(self, logits: Tensor) -> Tensor:
        """The entropy term of the loss."""
        return losses.entropy(logits).mean()

    def gradient(self, step: Step, state: State) -> Objective:
        arena = step.network.arena
        step.backward(self.probe(step.logits), retain_graph=True)
        updates = self.measure(arena, state)
        measured = torch.stack([value.sum() for value in updates.values() if isinstance(value, Tensor)]).sum()
        if not torch.isfinite(measured):
            return Objective(loss=measured, selected=0)  # for the adapter to refuse
        arena.zero_gradients()
        loss = self.entropy(step.logits)
        if self.consistency_weight > 0:
            views = call_augmentation(self.augment or COLOUR_AFFINE_BLUR, step.images, step.generator)
            disagreement = losses.cross_entropy(step.logits, step.network(views)).mean()
            loss = loss + self.consistency_weight * step.num_classes * disagreement
        step.backward(loss)
        return Objective(loss, selected=len(step.logits), updates={**updates, "before": arena.values.clone()})

    def after_step(self, step: Step, state: State) -> None:
        arena = step.network.arena
        arena.assign(torch.lerp(state.tensor("before"), arena.values, self.rates(arena, state)))
        state["before"] = None

    def passes(self, selected: float) -> tuple[float, float]:
        views = 1.0 if self.consistency_weight > 0 else 0.0
        return 1.0 + views, 2.0 + views


def mean_per_tensor(arena: Arena, values: Tensor) -> Tensor:
    """Mean of `values` [len(arena)] over each adapted tensor [tensors]."""
    return torch.stack([part.mean() for part in torch.split(values, _sizes(arena))])


def spread(arena: Arena, values: Tensor) -> Tensor:
    """One value per adapted tensor [tensors], repeated for each of its numbers [len(arena)]."""
    return values.repeat_interleave(torch.tensor(_sizes(arena), device=values.device), output_size=len(arena))


def _sizes(arena: Arena) -> list[int]:
    return [span.stop - span.start for span in arena.tensors]
