"""Guard: back to the source when known images in the stream's look are answered worse than without adapting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from tidefast.core.constraints import Count, Positive, PositiveShare, Share
from tidefast.core.measurement import Measurement
from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.core.step import Step
from tidefast.resets.base import Reset, Verdict, registry
from tidefast.resets.guard.look import dress

CANARIES, ANSWERS = "guard_canaries", "guard_answers"
"""The constants: images [n, ...], and what the source model says they are [n]."""


@registry.register("guard")
@dataclass(frozen=True)
class Guard(Reset):
    """A detector, not a timer: it resets when it has evidence that adapting does harm.

    1. Now and then it dresses canaries, source images whose answers are known, in the look of the batch at hand.
    2. The adapted network and the one that does not adapt answer them; a canary that only the first gets right counts
       +1, one that only the second gets right -1.
    3. When the sum over canaries, each with its mean over the last few times, lies `significance` standard errors
       below zero, everything returns to the source.
    4. The learning rate is then lowered, the more the sooner harm was done.
    5. It grows again while nothing is wrong.

    Without canaries it compares the two networks on the stream itself and sees only a collapse that is nearly total:
    it resets when the adapted network's answers hold less than `belief` of what the other one believes.
    """

    prepared_with: ClassVar[tuple[str, ...]] = ("canaries",)
    quick: ClassVar[Mapping[str, Any]] = {"significance": 0.01, "belief": 0.999, "every": 2}
    measures: ClassVar[Mapping[str, Measurement]] = {
        "agreement": Measurement("Canaries in the stream's look that get the source's answer.", "share"),
        "reference_agreement": Measurement("The same without adapting.", "share", beside="agreement"),
        "evidence": Measurement("Standard errors by which adapting answers canaries better than not adapting."),
        "kept_belief": Measurement("What the source believes of the answers, relative to its own.", "share"),
        "rate": Measurement("Learning rate in use over the one that was given.", "share"),
    }

    significance: Positive = 2.5
    """Standard errors below zero at which it resets."""
    every: Count = 8
    """Batches between two looks at the canaries; after a start or a reset it looks after 1, 2, 4, ... of them."""
    asked: Count = 4
    """How many batches of canaries it asks at a time, at most; all have their turn."""
    memory: Count = 4
    """How many times of asking a canary's mean spans."""
    canaries: Annotated[int, Ge(8)] = 256
    """At most so many of the source images."""
    slowest: PositiveShare = 0.1
    """What a reset leaves of the learning rate at least, when harm was done at once."""
    fastest: PositiveShare = 0.5
    """And at most, when it took `patience` batches or more."""
    patience: Count = 1000
    growth: Annotated[float, Ge(1.0)] = 1.2
    """By which the rate grows after every `quiet` batches, up to what was given."""
    quiet: Count = 100
    belief: Share = 0.5
    """Without canaries: the share of the source's belief below which it resets."""

    @property
    def takes_source(self) -> bool:
        return True

    @torch.no_grad()
    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        taken: list[Tensor] = []
        for images in source:
            taken.append(images[: self.canaries - sum(map(len, taken))])
            if sum(map(len, taken)) >= self.canaries:
                break
        answers = [network.source_logits(images, running_statistics=True).argmax(1) for images in taken]
        return {CANARIES: torch.cat(taken).clone(), ANSWERS: torch.cat(answers)}

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        canaries = network.constants.get(CANARIES)
        fields = [Field("batches", lambda: 0), Field("rate", lambda: 1.0, lifetime="stream")]
        if canaries is None:
            return [*fields, Field("kept", lambda: None)]
        zeros = canaries.new_zeros(len(canaries), dtype=torch.float32)
        return [*fields, Field("balance", zeros.clone), Field("times", zeros.clone), Field("next", lambda: 0)]

    @torch.no_grad()
    def observe(self, step: Step, state: State) -> Verdict:
        batches = int(state.number("batches")) + 1
        state["batches"] = batches
        rate = state.number("rate")
        measured = {"rate": rate}
        if batches % self.every == 0 or (batches < self.every and batches & (batches - 1) == 0):
            ask = self._ask_canaries if CANARIES in step.constants else self._ask_stream
            harmful, answers = ask(step, state)
            measured |= answers
            if harmful:
                lowered = min(self.fastest, max(self.slowest, batches / self.patience))
                self._change_rate(step, state, max(rate * lowered, torch.finfo(torch.float32).tiny))
                return Verdict(fraction=1.0, cut=0, measurements=measured)
        if batches % self.quiet == 0 and rate < 1.0:
            self._change_rate(step, state, min(1.0, rate * self.growth))
        return Verdict(measurements=measured)

    def _ask_canaries(self, step: Step, state: State) -> tuple[bool, dict[str, float]]:
        """Whether there is evidence of harm, from some of the canaries as the batch at hand looks."""
        canaries, known = step.constants[CANARIES], step.constants[ANSWERS]
        size = min(max(2, len(step.images)), len(canaries))
        count = size * min(self.asked, len(canaries) // size)
        first = int(state.number("next"))
        places = (torch.arange(count, device=known.device) + first) % len(canaries)
        state["next"] = (first + count) % len(canaries)
        dressed = torch.split(dress(canaries[places], step.images), size)
        own = torch.cat([step.answer_to(images).argmax(1) for images in dressed]) == known[places]
        other = torch.cat([step.network.source_logits(images).argmax(1) for images in dressed]) == known[places]
        balance, times = state.tensor("balance"), state.tensor("times")
        times[places] = (times[places] + 1.0).clamp_max(float(self.memory))
        balance[places] += (own.to(balance) - other.to(balance) - balance[places]) / times[places]
        evidence = balance.sum() / (1.0 + balance.square().sum()).sqrt()
        agreement, reference, standing = torch.stack([own.float().mean(), other.float().mean(), evidence]).tolist()
        measured = {"agreement": agreement, "reference_agreement": reference, "evidence": standing}
        return standing < -self.significance, measured

    def _ask_stream(self, step: Step, state: State) -> tuple[bool, dict[str, float]]:
        """Whether the answers to the batch at hand have next to nothing to do any more with the source's."""
        beliefs = step.source_logits().softmax(1)
        kept = float(beliefs.gather(1, step.answer.argmax(1, keepdim=True)).sum() / beliefs.max(1).values.sum())
        kept = kept if state["kept"] is None else 0.5 * (kept + state.number("kept"))
        state["kept"] = kept
        return kept < self.belief, {"kept_belief": kept}

    @staticmethod
    def _change_rate(step: Step, state: State, rate: float) -> None:
        if step.optimizer is not None:
            for group in step.optimizer.param_groups:
                group["lr"] *= rate / state.number("rate")
        state["rate"] = rate
