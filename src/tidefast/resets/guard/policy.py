"""Guard: back to the source when known images in the stream's look are answered worse than without adapting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from tidefast.core.constraints import Count, NonNegative, Positive, PositiveShare, Share
from tidefast.core.measurement import Measurement
from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.core.step import Step
from tidefast.resets.base import Verdict, registry
from tidefast.resets.guard.look import dress
from tidefast.resets.guard.promises import Promises

CANARIES, ANSWERS = "guard_canaries", "guard_answers"
"""The constants: images [n, ...], and what the source model says they and their mirror images are [2, n]."""
_EARLY = 8
_LOWEST_RATE = 1e-12


@registry.register("guard")
@dataclass(frozen=True)
class Guard(Promises):
    """A detector, not a timer: it resets when it has evidence that adapting does harm.

    1. Now and then it dresses canaries, source images whose answers are known, in the look of the batch at hand.
    2. The adapted network and the one that does not adapt answer them; a canary that only the second gets right
       counts +1, one that only the first gets right -1, and their sum is divided by its standard error.
    3. These losses, less `allowance` each time, are added up, never below zero (a CUSUM); above `limit` everything
       returns to the source.
    4. The learning rate is then lowered, the more the sooner harm was done.
    5. It grows again while nothing is wrong.

    Without canaries it compares the two networks on the stream itself and sees only a collapse that is nearly total:
    it resets when the adapted network's answers hold less than `belief` of what the other one believes.
    """

    prepared_with: ClassVar[tuple[str, ...]] = ("canaries",)
    quick: ClassVar[Mapping[str, Any]] = {"limit": 0.01, "allowance": 0.0, "belief": 0.999, "asked": 4}
    measures: ClassVar[Mapping[str, Measurement]] = {
        "agreement": Measurement("Canaries in the stream's look that get the source's answer.", "share"),
        "reference_agreement": Measurement("The same without adapting.", "share", beside="agreement"),
        "evidence": Measurement("Evidence of harm: standard errors lost to not adapting, added up."),
        "kept_belief": Measurement("What the source believes of the answers, relative to its own.", "share"),
        "rate": Measurement("Learning rate in use over the one that was given.", "share"),
        **Promises.measures,
    }

    limit: Positive = 4.0
    """Standard errors of loss, added up, above which it resets."""
    allowance: NonNegative = 0.25
    """Standard errors of loss that do not count, each time canaries are asked."""
    asked: Count = 64
    """How many canaries are asked at a time, once for every twice as many images of the stream; all have their turn.
    After a start or a reset it asks after 1, 2, 4 and 8 batches too."""
    canaries: Annotated[int, Ge(8)] = 256
    """At most so many of the source images, drawn at random from the first few thousand."""
    harshest: PositiveShare = 0.1
    """What a reset leaves of the learning rate at least, when harm was done at once."""
    mildest: PositiveShare = 0.5
    """And at most, when it took `patience` batches times this or more."""
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
        canaries = _drawn(source, self.canaries)
        answers = [
            torch.cat(
                [network.source_logits(part, running_statistics=True).argmax(1) for part in torch.split(side, 64)]
            )
            for side in _sides(canaries)
        ]
        return {CANARIES: canaries, ANSWERS: torch.stack(answers)}

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        shared = [
            Field("batches", lambda: 0),
            Field("unasked", lambda: 0),
            Field("rate", lambda: 1.0, lifetime="stream"),
            *self.promise_fields(),
        ]
        if CANARIES not in network.constants:
            return [*shared, Field("kept", lambda: None)]
        return [*shared, Field("lost", lambda: 0.0), Field("next", lambda: 0, lifetime="stream")]

    @torch.no_grad()
    def observe(self, step: Step, state: State) -> Verdict:
        batches, unasked = int(state.number("batches")) + 1, int(state.number("unasked")) + len(step.images)
        rate = state.number("rate")
        early = batches <= _EARLY and batches & (batches - 1) == 0
        asks = early or unasked >= 2 * self.asked
        state.update({"batches": batches, "unasked": 0 if asks else unasked})
        measured, harmful = {"rate": rate, **self.promised(state)}, False
        if asks:
            ask = self._ask_canaries if CANARIES in step.constants else self._ask_stream
            harmful, answers = ask(step, state)
            measured |= answers
        if harmful:
            share = min(self.mildest, max(self.harshest, batches / self.patience))
            _change_rate(step, state, max(_LOWEST_RATE, rate * share))
            return Verdict(fraction=1.0, cut=0, measurements=measured)
        if batches % self.quiet == 0 and rate < 1.0:
            _change_rate(step, state, min(1.0, rate * self.growth))
        return Verdict(measurements=measured)

    def _ask_canaries(self, step: Step, state: State) -> tuple[bool, dict[str, float]]:
        """Whether not adapting would have answered enough canaries better, as the batch at hand looks."""
        canaries, answers = step.constants[CANARIES], step.constants[ANSWERS]
        size = min(max(2, len(step.images)), len(canaries))  # as many together as the stream's images are
        count = size * max(1, min(self.asked, len(canaries)) // size)
        first = int(state.number("next"))
        state["next"] = (first + count) % len(canaries)
        places = (torch.arange(count, device=canaries.device) + first) % len(canaries)
        side = int(torch.randint(2, (), generator=step.generator))
        known = answers[side, places]
        dressed = torch.split(dress(_sides(canaries[places])[side], step.images, step.generator), size)
        own = (torch.cat([step.answer_to(images).argmax(1) for images in dressed]) == known).float()
        other = (torch.cat([step.network.source_logits(images).argmax(1) for images in dressed]) == known).float()
        loss = other - own
        agreement, reference, lost = torch.stack(
            [own.mean(), other.mean(), loss.sum() / (1.0 + loss.square().sum()).sqrt()]
        ).tolist()
        evidence = max(0.0, state.number("lost") + lost - self.allowance)
        state["lost"] = evidence
        return evidence > self.limit, {
            "agreement": agreement,
            "reference_agreement": reference,
            "evidence": evidence,
        }

    def _ask_stream(self, step: Step, state: State) -> tuple[bool, dict[str, float]]:
        """Whether the answers to the batch at hand have next to nothing to do any more with the source's."""
        beliefs = step.source_logits().softmax(1)
        kept = float(beliefs.gather(1, step.answer.argmax(1, keepdim=True)).sum() / beliefs.max(1).values.sum())
        kept = kept if state["kept"] is None else 0.5 * (kept + state.number("kept"))
        state["kept"] = kept
        return kept < self.belief, {"kept_belief": kept}


def _change_rate(step: Step, state: State, rate: float) -> None:
    if step.optimizer is not None:
        for group in step.optimizer.param_groups:
            group["lr"] *= rate / state.number("rate")
    state["rate"] = rate


def _drawn(source: SourceData, count: int) -> Tensor:
    """So many images in no order; each of the first few thousand has the same chance, however they are sorted."""
    generator = torch.Generator().manual_seed(0)
    kept, ranks, seen = torch.empty(0), torch.empty(0), 0
    for images in source:
        drawn = torch.rand(len(images), generator=generator)
        kept = torch.cat([kept, images]) if seen else images
        ranks, best = torch.cat([ranks, drawn]).sort(stable=True)
        ranks, kept = ranks[:count], kept[best[:count]]
        seen += len(images)
        if seen >= 16 * count:
            break
    return kept.clone()


def _sides(images: Tensor) -> tuple[Tensor, Tensor]:
    """Images and their mirror images; inputs that are no images twice as they are."""
    return images, images.flip(-1) if images.dim() == 4 else images
