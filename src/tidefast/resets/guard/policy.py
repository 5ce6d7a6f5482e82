"""Guard: back to where it was when known images in the stream's look are answered worse than without adapting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from tidefast.core.constraints import Count, NonNegative, Positive, PositiveShare, Share
from tidefast.core.measurement import Measurement
from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.core.step import Reference, Step
from tidefast.resets.base import Verdict, registry
from tidefast.resets.guard.canaries import (
    CANARIES,
    CanaryAnswers,
    DressedCanaries,
    confidence,
    how_many,
    lead,
    lead_on_stream,
    prepared,
)
from tidefast.resets.guard.promises import Promises

_EARLY_LOOKS, _RARELY = 4, 8
"""The source as it was trained is asked first, in every eighth look, and in all while it is ahead or answers."""
_MEMORY = 0.75
"""Share of what was known of its lead that remains with each time it is asked."""
_LOWEST_RATE = 1e-12
_THOROUGH = 4
"""Times as many canaries as usual are asked whether to go back, and where to."""


class _LookResult(NamedTuple):
    """What asking canaries, or the stream, has shown."""

    harmful: bool = False
    """Whether adapting has done harm."""
    back: bool = False
    """Whether what was kept is better than the source, where to go back."""
    best: bool = False
    """Whether it never was so far ahead, since there was last nothing to be said for it."""
    measured: Mapping[str, float] = {}


@registry.register("guard")
@dataclass(frozen=True)
class Guard(Promises):
    """A detector, not a timer: it resets when it has evidence that adapting does harm.

    1. Now and then it dresses canaries, source images whose answers are known, in the look of the batch at hand.
    2. The adapted network and the one that does not adapt answer them; a canary that only the second gets right
       counts +1, one that only the first gets right -1, and their sum is divided by its standard error.
    3. These losses, less `allowance` each time, are added up, never below zero (a CUSUM); the nearer the sum is to
       `limit`, the lower the learning rate, and from the share `doubt` of it on both networks answer together.
    4. At `limit` four times as many canaries are asked at once; if these lose more than `confirmed` standard errors,
       the network goes back: to the parameters with which it was furthest ahead, as the same sum of its gains tells,
       if they gain more than that over the source now, else to the source; if not, the doubt remains.
    5. Having gone back, the learning rate stays lower, the more the sooner harm was done, and once more by as much as
       it had been lowered already; it grows again as long as the network does not go back.

    Where the batch's statistics fail, the source as it was trained answers too, while canaries say that it is ahead
    (`as_trained`).

    Without canaries it compares the two networks on the stream itself and sees only a collapse that is nearly total:
    it resets when the adapted network's answers hold less than `belief` of what the other one believes.
    """

    prepared_with: ClassVar[tuple[str, ...]] = ("canaries",)
    quick: ClassVar[Mapping[str, Any]] = {
        "limit": 0.01,
        "confirmed": 0.0,
        "allowance": 0.0,
        "worth_keeping": 0.0,
        "belief": 0.999,
        "asked": 4,
    }
    measures: ClassVar[Mapping[str, Measurement]] = {
        "agreement": Measurement("Canaries in the stream's look that get the source's answer.", "share"),
        "reference_agreement": Measurement("The same without adapting.", "share", beside="agreement"),
        "evidence": Measurement("Evidence of harm: standard errors lost to not adapting, added up."),
        "kept_belief": Measurement("What the source believes of the answers, relative to its own.", "share"),
        "rate": Measurement("Learning rate in use over the one that was given.", "share"),
        "back_to_kept": Measurement("Of a reset: 1 when it went back to parameters that were ahead, 0 to the source."),
        "in_doubt": Measurement("1 where evidence of harm made the adapted network answer with the other one."),
        "trained_answers": Measurement(
            "Share of the source as it was trained, with its own statistics, in the answers: none, half, or 1."
        ),
        **Promises.measures,
    }

    limit: Positive = 4.0
    """Standard errors of loss, added up, at which it asks again; on the way there the learning rate falls to zero."""
    doubt: Annotated[float, Interval(gt=0.0, lt=1.0)] = 0.5
    """The share of `limit` from which on the adapted network answers together with the one that does not adapt, and to
    which the sum returns when more canaries do not confirm the loss."""
    confirmed: NonNegative = 1.0
    """Standard errors of loss when it asks again, above which it goes back; and of gain over the source, above which
    to what was kept."""
    allowance: NonNegative = 0.25
    """Standard errors of loss that do not count, each time canaries are asked."""
    worth_keeping: NonNegative = 1.0
    """Standard errors of gain, added up in the same way, from which on parameters are kept, to go back to; others take
    their place with a higher sum, or once it has been zero in between."""
    asked: Count = 64
    """How many canaries are asked at a time, once for every twice as many images of the stream; all have their turn."""
    eagerness: Count = 8
    """After a start or a reset it asks sooner: once this share, one in so many, of the batches since then is new."""
    canaries: Annotated[int, Ge(8)] = 512
    """At most so many of the source images, drawn at random from the first few thousand; the more, the smaller the harm
    that it sees."""
    harshest: PositiveShare = 0.1
    """What a first reset leaves of the learning rate at least, when harm was done at once."""
    mildest: PositiveShare = 0.5
    """And at most, when it took `patience` batches times this or more."""
    patience: Count = 1000
    growth: Annotated[float, Ge(1.0)] = 1.2
    """By which the rate grows after every `quiet` batches, up to what was given."""
    quiet: Count = 100
    as_trained: bool = True
    """Whether the source as it was trained, with its own statistics, answers together with a network with those of the
    batch while it is ahead: where labels come in order, or batches are small for the number of classes."""
    alone: Share = 0.1
    """Share of images by which it is ahead, above which it answers alone."""
    belief: Share = 0.5
    """Without canaries: the share of the source's belief below which it resets."""

    @property
    def takes_source(self) -> bool:
        return True

    @property
    def keeps(self) -> bool:
        return True

    @torch.no_grad()
    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        return prepared(network, source, self.canaries)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        shared = [
            Field("batches", lambda: 0),
            Field("unasked", lambda: 0),
            Field("lost", float),
            Field("rate", lambda: 1.0, lifetime="stream"),
            *self.promise_fields(),
        ]
        if CANARIES not in network.constants:
            return [*shared, Field("kept", lambda: None)]
        return [
            *shared,
            Field("won", float),
            Field("most_won", float),
            Field("next", int, lifetime="stream"),
            Field("looks", int, lifetime="stream"),
            Field("against", float, lifetime="stream"),
            Field("trained_answers", int, lifetime="stream"),
            Field("trained_lead", float, lifetime="stream"),
        ]

    @torch.no_grad()
    def observe(self, step: Step, state: State) -> Verdict:
        batches, unasked = int(state.number("batches")) + 1, int(state.number("unasked")) + len(step.images)
        rate, before = state.number("rate"), self._rate_in_use(state)
        asks = unasked >= min(2 * self.asked, batches * len(step.images) / self.eagerness)
        state.update({"batches": batches, "unasked": 0 if asks else unasked})
        measured = {"rate": before, "in_doubt": float(self._doubts(state)), **self.promised(state)}
        ask = self._ask_canaries if CANARIES in step.constants else self._ask_stream
        shown = ask(step, state) if asks else _LookResult()
        measured |= shown.measured
        if shown.harmful:
            share = min(self.mildest, max(self.harshest, batches / self.patience))
            state["rate"] = max(_LOWEST_RATE, rate * rate * share)
        elif batches % self.quiet == 0:
            state["rate"] = min(1.0, rate * self.growth)
        if step.optimizer is not None:
            for group in step.optimizer.param_groups:
                group["lr"] *= self._rate_in_use(state) / before
        if not shown.harmful:
            return Verdict(keeps=shown.best, measurements=measured)
        measured["back_to_kept"] = float(shown.back)
        return Verdict(fraction=1.0, cut=0, target="kept" if shown.back else "live", measurements=measured)

    def _doubts(self, state: State) -> bool:
        """Whether the evidence of harm is such that both networks answer together."""
        return state.number("lost") >= self.doubt * self.limit

    def _rate_in_use(self, state: State) -> float:
        """The learning rate over the one that was given: lower while there is evidence of harm."""
        return state.number("rate") * (1.0 - state.number("lost") / self.limit)

    def _ask_canaries(self, step: Step, state: State) -> _LookResult:
        """Whether not adapting would have answered enough canaries better, as the batch at hand looks."""
        look = self._look(step, state, self.asked)
        own, other = look.right(step.answer_to), look.answers(step.network.source_logits)
        agreement, reference, lost = torch.stack([own.mean(), other.right.mean(), lead(other.right, own)]).tolist()
        evidence = max(0.0, state.number("lost") + lost - self.allowance)
        won = max(0.0, state.number("won") - lost - self.allowance)
        most = state.number("most_won") if won else 0.0
        best = won >= self.worth_keeping and won > most
        looks = int(state.number("looks"))
        state.update({"lost": evidence, "won": won, "most_won": max(won, most), "looks": looks + 1})
        measured = {"agreement": agreement, "reference_agreement": reference, "evidence": evidence}
        due = looks < _EARLY_LOOKS or looks % _RARELY == 0 or state.number("against") or state["trained_answers"]
        if due and self.as_trained and step.network.statistics.needs_batch:
            self._ask_as_trained(step, state, look, own, other)
            measured["trained_answers"] = self._share_of_trained(state)
        harmful = back = False
        if evidence >= self.limit:
            harmful, back = self._ask_again(step, state)
            state["lost"] = 0.0 if harmful else self.doubt * self.limit
        return _LookResult(harmful, back, best, measured)

    def _look(self, step: Step, state: State, asked: int) -> DressedCanaries:
        """The next canaries in turn, as the batch at hand looks."""
        count, canaries, first = how_many(step, asked), len(step.constants[CANARIES]), int(state.number("next"))
        state["next"] = (first + count) % canaries
        places = (torch.arange(count, device=step.images.device) + first) % canaries
        return DressedCanaries.at(places, step, step.generator)

    def _ask_again(self, step: Step, state: State) -> tuple[bool, bool]:
        """Whether more canaries say that it must go back, as the batch at hand looks, and whether to what was kept."""
        look = self._look(step, state, _THOROUGH * self.asked)
        own, best = look.right(step.answer_to), look.right(step.network.source_logits)
        back = False
        if step.kept is not None:
            with step.network.arena.holding(step.kept):
                kept = look.right(step.network)
            back = bool(lead(kept, best) > self.confirmed)
            best = kept if back else best
        return bool(lead(best, own) > self.confirmed), back

    def _ask_as_trained(
        self, step: Step, state: State, look: DressedCanaries, own: Tensor, reference: CanaryAnswers
    ) -> None:
        """Who is to answer: the network with the batch's statistics, or the source as it was trained, with its own.

        These are unequally hurt by what a look cannot imitate (fog), and by a batch with few of the classes. What the
        confidence in answers to the stream lacks to that in canaries tells how much; of the adapted network it would
        not, as adapting may raise it, so that of the network that does not adapt stands for both.
        """
        trained = look.answers(lambda images: step.network.source_logits(images, running_statistics=True))
        ahead = confidence(step.source_logits(running_statistics=True)) - confidence(step.source_logits())
        leads = lead_on_stream(trained.right - trained.confidence, own - reference.confidence, ahead)
        share, errors = torch.stack(leads).tolist()
        answers = int(state.number("trained_answers"))
        against = max(0.0, state.number("against") + (-errors if answers else errors) - self.allowance)
        changes = against > self.limit
        # Its lead grows over many looks, and is forgotten at once where one says that it is behind.
        known = _MEMORY * state.number("trained_lead") + (1.0 - _MEMORY) * share if errors >= -self.confirmed else 0.0
        state.update(
            {"against": 0.0 if changes else against, "trained_answers": answers ^ changes, "trained_lead": known}
        )

    def _share_of_trained(self, state: State) -> float:
        """Of the source as it was trained in the answers: both are right more often than the better of two that are
        nearly as good, so it answers alone only where it is far ahead."""
        if not state.get("trained_answers"):
            return 0.0
        return 1.0 if state.number("trained_lead") > self.alone else 0.5

    def answer(self, logits: Tensor, reference: Reference, state: State, *, counts: bool) -> Tensor:
        trained = self._share_of_trained(state)
        if trained < 1.0 and self._doubts(state):
            logits = _together(logits, reference())
        if trained:
            others = reference(running_statistics=True)
            logits = others.to(logits.dtype) if trained == 1.0 else _together(logits, others)
        return super().answer(logits, reference, state, counts=counts)

    def _ask_stream(self, step: Step, state: State) -> _LookResult:
        """Whether the answers to the batch at hand have next to nothing to do any more with the source's."""
        beliefs = step.source_logits().softmax(1)
        kept = float(beliefs.gather(1, step.answer.argmax(1, keepdim=True)).sum() / beliefs.max(1).values.sum())
        kept = kept if state["kept"] is None else 0.5 * (kept + state.number("kept"))
        state["kept"] = kept
        return _LookResult(harmful=kept < self.belief, measured={"kept_belief": kept})


def _together(own: Tensor, other: Tensor) -> Tensor:
    """The mean of the logits [images, classes] of two networks, as if the first's spread as far as the other's."""
    exact = torch.promote_types(own.dtype, torch.float32)
    centred = [logits.to(exact) - logits.to(exact).mean(1, keepdim=True) for logits in (own, other)]
    spread, their_spread = (logits.square().mean().sqrt() for logits in centred)
    scale = their_spread / spread.clamp_min(torch.finfo(exact).tiny)
    return (0.5 * (centred[0] * scale + centred[1])).to(own.dtype)
