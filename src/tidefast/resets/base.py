"""What a reset policy is: it observes, and answers how much to reset."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from tidefast.core import measurement
from tidefast.core.constraints import Constrained
from tidefast.core.feedback import Feedback
from tidefast.core.measurement import Measurement
from tidefast.core.network import Network
from tidefast.core.registry import Registry
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.core.step import Reference, Step

Target = Literal["live", "anchor", "kept"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A policy's answer after a step: what to reset, and what it measured."""

    fraction: float = 0.0
    """Share of the layers that is reset."""
    cut: int | None = None
    """Position in the arena from which on to reset; None: no reset."""
    target: Target = "live"
    """"live": the adapted parameters return to the source from `cut` on. "anchor": the method's anchor, where it
    has one, becomes the adapted parameters up to `cut` and the source from there; the adapted parameters stay.
    "kept": the adapted parameters, and what the method has laid out like them, return to what was kept last."""
    keeps: bool = False
    """Whether the parameters, as they are after this step, are worth keeping, to return to; for policies that keep."""
    keep_optimizer: bool = False
    measurements: Mapping[str, float] = field(default_factory=dict)
    """By names of `Reset.measures`; nan, or left out, is what this step did not measure."""


@dataclass(frozen=True)
class Reset(Constrained):
    """Base of all policies. Like a method, a frozen dataclass of hyperparameters that holds no state."""

    name: ClassVar[str] = ""
    quick: ClassVar[Mapping[str, Any]] = {}
    """Settings with which it does something within a few steps of tiny batches, for the tests."""
    prepared_with: ClassVar[tuple[str, ...]] = ()
    """The hyperparameters that `prepare` depends on."""
    measures: ClassVar[Mapping[str, Measurement]] = {}
    """What `observe` measures, by name: records, runs, metrics, lists and charts follow from it."""

    fetches: ClassVar[bool] = False
    """Whether `observe` gets all its numbers by `Step.fetch`, which tells too whether the step was sound; that saves a
    wait for the device. If not, a step is known to be sound when `observe` is called."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        measurement.check(cls.__name__, cls.measures)

    @property
    def needs_source(self) -> str | None:
        """What the policy must be given beyond the model, in words; None when nothing."""
        return None

    @property
    def takes_source(self) -> bool:
        """Whether source data is of use to it; by default where it is needed."""
        return self.needs_source is not None

    @property
    def takes_labels(self) -> bool:
        """Whether labels are of use to it: whether it has `feedback`."""
        return False

    @property
    def keeps(self) -> bool:
        """Whether its verdicts may keep parameters and return to them."""
        return False

    @property
    def compares_answers(self) -> bool:
        """Whether `answer` holds every answer against the reference's: both are then given in the same company."""
        return False

    @property
    def compares_with(self) -> Literal["batch", "running"] | None:
        """The statistics with which `observe` asks for the source model's answers in every step, or None where it does
        not: then they come of one pass for all streams that step together."""
        return None

    def configure(self, model: nn.Module) -> None:
        """Prepare the private network, after the method did: where a policy must see what happens inside it."""

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        """Compute the policy's constants from source data, once, before the stream; as `Method.prepare`."""
        return {}

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        """The state that survives a step."""
        return []

    def watching(self, network: Network) -> AbstractContextManager[Any]:
        """Around the pass that answers a batch to adapt to, and around no other pass; what it gives goes to `begin`."""
        return nullcontext()

    def begin(self, step: Step, state: State, watched: Any) -> None:
        """Called when the network has just answered the batch, before the method does anything with it.

        watched: what the context of `watching` gave.
        """

    def adjust_gradient(self, step: Step, state: State) -> None:
        """Called with the method's gradient in the arena, before the optimiser steps; may add to it."""

    def answer(self, logits: Tensor, reference: Reference, state: State, *, counts: bool) -> Tensor:
        """What the caller gets for the method's logits [images, classes]: of a batch, or of a single image.

        reference: gives the logits of the network that does not adapt for the same images, with the statistics that the
            method uses or with the source's own; one pass.
        counts: whether this is an adapting call; if not (`predict`, a batch that is unusable), no state may change.
        In a step it is called after the update and before `observe`.
        """
        return logits

    def observe(self, step: Step, state: State) -> Verdict:
        """Called after the update; `step.answer` is of before it."""
        raise NotImplementedError(f"{type(self).__name__} must define observe()")

    def feedback(self, logits: Tensor, reference: Tensor, labels: Tensor, state: State) -> Feedback:
        """Called with labels [images], and what adapted network and reference say of these images now."""
        raise NotImplementedError(f"{type(self).__name__} takes labels and must define feedback()")


registry: Registry[Reset] = Registry("reset", Reset)
