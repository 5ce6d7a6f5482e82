"""Promises: a hard budget of answers that may differ from the reference's, and a test with a few labels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Interval
from torch import Tensor

from tidefast.core.constraints import Share
from tidefast.core.feedback import Feedback
from tidefast.core.measurement import Measurement
from tidefast.core.state import Field, State
from tidefast.core.step import Reference
from tidefast.resets.base import Reset
from tidefast.resets.guard.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class Promises(Reset):
    """What a policy promises of its answers, against the reference: the network that does not adapt, its parameters
    the source's, its statistics those that the method uses (of the batch, for most)."""

    measures: ClassVar[Mapping[str, Measurement]] = {
        "overruled": Measurement("Share of the answers so far that differ from the reference's.", "share"),
        "label_evidence": Measurement("Evidence of the labels for whoever does not answer; 1 at the beginning."),
        "label_evidence_needed": Measurement("Evidence at which the other one answers.", beside="label_evidence"),
    }

    budget: Share | None = None
    """Of the first n answers at most floor(budget x n) differ from the reference's, for every n; the others are the
    reference's. None: no limit."""
    alpha: Annotated[float, Interval(gt=0.0, lt=1.0)] | None = None
    """The reference answers until labels (`Adapter.feedback`) say that adapting is better, and again once they say that
    it is worse; the chance that this is ever wrong. None: no labels are asked for."""

    @property
    def takes_labels(self) -> bool:
        return self.alpha is not None

    @property
    def compares_answers(self) -> bool:
        return self.budget is not None or self.alpha is not None

    def promise_fields(self) -> list[Field]:
        """The state of the promises that are made; a reset of the policy's own leaves it."""
        counts: dict[str, Any] = {} if self.budget is None else {"answered": 0, "overruled": 0}
        evidence = {} if self.alpha is None else dataclasses.asdict(Evidence())
        return [
            Field(name, lambda value=value: value, lifetime="stream")  # type: ignore[misc]  # a lambda's default
            for name, value in {**counts, **evidence}.items()
        ]

    def promised(self, state: State) -> dict[str, float]:
        """What is measured of the promises, the batch at hand included."""
        measured = {}
        if self.budget is not None:
            measured["overruled"] = state.number("overruled") / max(1.0, state.number("answered"))
        if self.alpha is not None:
            evidence = _evidence(state)
            measured |= {"label_evidence": evidence.wealth, "label_evidence_needed": evidence.needed(self.alpha)}
        return measured

    def answer(self, logits: Tensor, reference: Reference, state: State, *, counts: bool) -> Tensor:
        silent = self.alpha is not None and not _evidence(state).adapted
        if self.budget is None:
            return reference() if silent else logits
        # A call that changes nothing has a budget of its own, so that any sequence of calls keeps to it.
        answered, overruled = (int(state.number(name)) if counts else 0 for name in ("answered", "overruled"))
        others = reference()
        chosen = others.to(logits.dtype, copy=True)
        for place, differs in enumerate((logits.argmax(1) != others.argmax(1)).tolist()):
            answered += 1
            if not differs and not silent:
                chosen[place] = logits[place]
            elif not silent and overruled + 1 <= math.floor(self.budget * answered):
                chosen[place] = logits[place]
                overruled += 1
        if counts:
            state.update({"answered": answered, "overruled": overruled})
        return chosen

    def feedback(self, logits: Tensor, reference: Tensor, labels: Tensor, state: State) -> Feedback:
        assert self.alpha is not None
        own, other = logits.argmax(1) == labels, reference.argmax(1) == labels
        differences = (own.int() - other.int()).tolist()
        before = evidence = _evidence(state)
        for difference in differences:
            evidence = evidence.after(difference, self.alpha)
        state.update(dataclasses.asdict(evidence))
        return Feedback(
            labels=len(differences),
            better=differences.count(1),
            worse=differences.count(-1),
            evidence=evidence.wealth,
            needed=evidence.needed(self.alpha),
            serves="adapted" if evidence.adapted else "reference",
            changed=evidence.adapted != before.adapted,
        )


def _evidence(state: State) -> Evidence:
    return Evidence(**{field.name: state[field.name] for field in dataclasses.fields(Evidence)})  # type: ignore[arg-type]  # declared so
