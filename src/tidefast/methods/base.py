"""What a method is: hyperparameters, a loss, and a few hooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tidefast.core.constraints import Constrained
from tidefast.core.network import Network
from tidefast.core.normalization import Statistics, require_affine_names
from tidefast.core.registry import Registry
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.core.step import Asking, Forward, Objective, Step
from tidefast.methods.about import About
from tidefast.resets.base import Reset


@dataclass(frozen=True)
class Method(Constrained):
    """Base of all methods. A subclass is a frozen dataclass whose fields are the hyperparameters.

    A method object holds no state, so that one object can serve many adapters: what survives a step is
    declared in `fields` and handed to the hooks as `state`.
    """

    name: ClassVar[str] = ""
    prepared_with: ClassVar[tuple[str, ...]] = ()
    """The hyperparameters that `prepare` depends on."""
    transformers_only: ClassVar[bool] = False
    """Whether it needs the tokens of a vision transformer, and refuses other networks."""
    about: ClassVar[About] = About(title="", adapts="")
    """Where it comes from and what to say of it: its page and the lists of methods are made of this."""
    quick: ClassVar[Mapping[str, Any]] = {}
    """Settings with which a few steps of tiny batches take little time and show all it does, for the tests."""
    together: ClassVar[bool] = False
    """Whether steps of several streams may share their passes (`Fleet.adapt`): `forward`, `predict` and `gradient` are
    the default ones, and `loss` asks for `Views`, or calls the network, and does nothing else with it. Others are
    stepped one by one."""
    busiest: ClassVar[Mapping[str, Any]] = {}
    """Settings with which a step does all that `passes` counts, every sample selected, for `tidefast speed`."""

    @property
    def needs_source(self) -> str | None:
        """What the method must be given beyond the model, in words; None when nothing."""
        return None

    @property
    def takes_source(self) -> bool:
        """Whether source data is of use to it; by default where it is needed."""
        return self.needs_source is not None

    def configure(self, model: nn.Module, statistics: Statistics) -> Sequence[str]:
        """Prepare the private network and name the parameters to adapt, from input to output.

        Default: batch statistics, and the scale and shift of every normalisation layer.
        """
        statistics.use_batch()
        return require_affine_names(model, type(self).__name__)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser when the caller names none."""
        return torch.optim.SGD(parameters, lr=2.5e-4, momentum=0.9, nesterov=True)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        """The state that survives a step."""
        return []

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        """Compute the method's constants from source data, once, before the stream.

        It finds them again in `Step.constants` and `Network.constants`.
        """
        return {}

    def start(self, constants: Mapping[str, Tensor]) -> Tensor | None:
        """Where the adapted parameters begin, and what resets return to [len(arena)], out of what `prepare` made.

        None: where they are in the caller's model.
        """
        return None

    def forward(self, network: Network, images: Tensor, state: State) -> Tensor | Forward:
        """The logits [batch, classes] to answer with, and in a `Forward` what else the loss needs.

        Default: those of the adapted network, attached to the graph.
        """
        return network(images)

    def predict(self, network: Network, images: Tensor, state: State) -> Tensor:
        """The same logits for a batch that is not adapted to; for methods whose `forward` does more than that needs."""
        return Forward.of(self.forward(network, images, state)).logits

    def loss(self, step: Step, state: State) -> Objective | Asking:
        """The objective on a batch whose logits, and whatever else `forward` gave, are known.

        A loss that needs the logits of further images, such as augmented views, asks for them:
        `logits = yield Views(images)`. Streams that are stepped together then share that pass too.
        """
        raise NotImplementedError(f"{type(self).__name__} must define loss() or gradient()")

    def gradient(self, step: Step, state: State) -> Objective:
        """Fill the arena's gradient (zero on entry) for this batch. Default: a backward of `loss`, and `regularize`."""
        objective = step.concluded(self.loss(step, state))
        if objective.loss is not None:
            step.backward(objective.loss)
            self.regularize(step, state)
        return objective

    def regularize(self, step: Step, state: State) -> None:
        """Called with the gradient of `loss` in the arena; may add to it what needs no pass."""

    def after_step(self, step: Step, state: State) -> None:
        """Called after the optimiser stepped."""

    def output(self, logits: Tensor) -> Tensor:
        """What the caller gets for logits [batch, classes]."""
        return logits

    def passes(self, selected: float) -> tuple[float, float]:
        """Forward and backward passes of a step, in batches, when the share `selected` of the batch contributes."""
        return 1.0, 1.0

    def own_reset(self) -> Reset | None:
        """A reset rule that is part of the method itself, beside any the caller adds."""
        return None


registry: Registry[Method] = Registry("method", Method)


def with_objective(method: Method, objective: str) -> Method:
    """The method with another loss, where it leaves the choice."""
    if "objective" not in {field.name for field in dataclasses.fields(method)}:
        able = [n for n in registry.names() if "objective" in {f.name for f in dataclasses.fields(registry.get(n))}]
        raise ValueError(
            f"{type(method).__name__} has no objective to choose, got objective={objective!r}; "
            f"methods that have: {', '.join(able)}"
        )
    changes: dict[str, Any] = {"objective": objective}
    return dataclasses.replace(method, **changes)
