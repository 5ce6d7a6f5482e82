"""AETTA: back to the source when an estimate of the accuracy, from passes with dropout, is low or falls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional

from tidefast.core import losses
from tidefast.core.constraints import Count, Share
from tidefast.core.measurement import Measurement
from tidefast.core.network import Network
from tidefast.core.state import Field, State
from tidefast.core.step import Step
from tidefast.probes.dropout import DropoutPlace, PlacedDropout, dropped
from tidefast.probes.features import Features, head_of
from tidefast.resets.base import Reset, Verdict, registry

_RATES = ((50, 0.4), (500, 0.3))
_RATE_OF_MANY = 0.2
_LEAST_SPREAD = 1e-12


@registry.register("aetta")
@dataclass(frozen=True)
class AETTA(Reset):
    """A full reset when the estimated accuracy is below `lowest`, or has fallen by more than `fall`.

    The network of before the update answers the batch `passes` times with dropout. Its error is estimated as the share
    of those answers that differ from the one given, divided by (H / ln classes) ^ `power`, where H is the entropy of
    the mean prediction over images and passes, and clipped to [0, 1 - 1 / classes]. What counts is a moving average of
    that. It has fallen when the mean of the last `span` batches is more than `fall` below that of the `span` before.

    Published: Lee, Chottananurak, Gong and Lee, AETTA, CVPR 2024, code taeckyung/AETTA. Cost: `passes` forwards a
    batch; one where dropout sits in front of the classifier alone.

    >>> import tidefast
    >>> from tidefast.testing import small_network
    >>> adapter = tidefast.adapt(small_network(), "tent", reset="aetta")
    >>> _ = adapter(torch.rand(16, 3, 32, 32))
    >>> 0.1 <= adapter.last.measurements["estimated_accuracy"] <= 1.0
    True
    """

    measures: ClassVar[Mapping[str, Measurement]] = {
        "estimated_accuracy": Measurement("Accuracy estimated from passes with dropout, a moving average.", "share")
    }
    quick: ClassVar[Mapping[str, Any]] = {"passes": 2, "lowest": 1.0}

    dropout: Annotated[float, Interval(gt=0.0, lt=1.0)] | None = None
    """Share of the activations that a pass drops. None: 0.4 up to 50 classes, 0.3 up to 500, 0.2 beyond, as published
    for CIFAR-10, CIFAR-100 and ImageNet."""
    at: DropoutPlace = "stages"
    """Where they are dropped: behind each stage of the network, as published for ResNets, and in front of the
    classifier in networks without stages; or there alone."""
    passes: Count = 10
    power: Annotated[float, Interval(ge=0.0, le=10.0)] = 3.0
    momentum: Share = 0.6
    """Weight of the former estimate in the moving average."""
    lowest: Share = 0.2
    fall: Share = 0.02
    span: Count = 5

    def configure(self, model: nn.Module) -> None:
        Features.of(model)
        PlacedDropout.of(model, self.at)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        # The average outlives resets, as published; what it was in the batches since the last one does not.
        return [
            Field("error", lambda: None, lifetime="stream"),
            Field("past", lambda: torch.zeros(0, dtype=torch.float64), shape=(range(2 * self.span + 1),)),
        ]

    @torch.no_grad()
    def adjust_gradient(self, step: Step, state: State) -> None:
        """The estimate: here the graph has served and the parameters are still those that answered."""
        logits = self._sampled(step)
        disagreement = float((logits.argmax(2) != step.answer.argmax(1)).double().mean())
        spread = float(losses.marginal_entropy(logits.flatten(0, 1).double())) / math.log(step.num_classes)
        if not math.isfinite(spread):  # an overflow in a pass with dropout tells nothing
            return
        scaled = disagreement / max(spread, _LEAST_SPREAD) ** self.power
        former = disagreement if state["error"] is None else state.number("error")
        error = self.momentum * former + (1.0 - self.momentum) * min(scaled, 1.0 - 1.0 / step.num_classes)
        state["error"] = error
        past = state.tensor("past")
        state["past"] = torch.cat([past, past.new_tensor([1.0 - error])])[-2 * self.span :]

    def observe(self, step: Step, state: State) -> Verdict:
        if state["error"] is None:
            return Verdict()
        accuracy, past = 1.0 - state.number("error"), state.tensor("past")
        measured = {"estimated_accuracy": accuracy}
        earlier, later = past[: -self.span], past[-self.span :]
        fallen = len(past) == 2 * self.span and float(later.mean()) < float(earlier.mean()) - self.fall
        if accuracy < self.lowest or fallen:
            return Verdict(fraction=1.0, cut=0, measurements=measured)
        return Verdict(measurements=measured)

    def _sampled(self, step: Step) -> Tensor:
        """Logits of the batch in passes with dropout [passes, batch, classes]."""
        module, rate = step.network.module, self._rate(step.num_classes)
        # From the step's seed, not its generator: the method draws the same numbers as under any other policy.
        generator = torch.Generator().manual_seed(step.generator.initial_seed() ^ 0xAE77A)
        placed = PlacedDropout.of(module, self.at)
        if not placed.stages:
            answer, features = Features.of(module).along(step.answer_to, step.images)
            if _is_last(head := head_of(module)[1], features, answer):  # what is before it is the same in each pass
                several = dropped(features.expand(self.passes, *features.shape), rate, generator)
                return functional.linear(several, head.weight, head.bias)
        with placed.sampling(rate, generator):
            return torch.stack([step.answer_to(step.images) for _ in range(self.passes)])

    def _rate(self, num_classes: int) -> float:
        if self.dropout is not None:
            return self.dropout
        return next((rate for most, rate in _RATES if num_classes <= most), _RATE_OF_MANY)


def _is_last(head: nn.Linear, features: Tensor, answer: Tensor) -> bool:
    """Whether `answer` is just what the head makes of `features`."""
    if features.shape != (len(answer), head.in_features):
        return False
    logits = functional.linear(features, head.weight, head.bias).to(answer)
    return logits.shape == answer.shape and torch.allclose(logits, answer, rtol=1e-4, atol=1e-5)
