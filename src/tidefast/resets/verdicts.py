"""Verdicts: the policies of an adapter are asked for theirs, and the one that reaches furthest is carried out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tidefast.core.arena import Arena
from tidefast.core.measurement import Measurement
from tidefast.core.state import Field, State
from tidefast.core.step import Step
from tidefast.resets.base import Reset, Verdict

KEPT, PARAMETERS = "kept", "kept_parameters"
"""The state of what a policy keeps, and in it the parameters; the rest is what the method has laid out like them."""


def nothing_kept(method: State, arena: Arena) -> State:
    """What a policy that keeps begins with."""
    size = (len(arena),)
    own = [
        Field(name, lambda: None, "stream", shape=size if value is None else tuple(value.shape))
        for name, value in _layered(method).items()
    ]
    return State([Field(PARAMETERS, lambda: None, "stream", shape=size), *own])


def _layered(state: State) -> dict[str, Tensor | None]:
    """The values of a method's episode that are laid out like the parameters, in memory of their own."""
    chosen = [name for name, field in state.fields.items() if field.layered and field.lifetime == "episode"]
    return {name: _copy(state.optional_tensor(name)) for name in chosen}


def _copy(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.clone()


def ask(
    policies: Mapping[str, Reset], step: Step, states: Mapping[str, State], measures: Mapping[str, Measurement]
) -> Verdict:
    """The widest reset that is asked for, with all that was measured; where two measured, the last one's counts."""
    given: dict[str, Verdict] = {}
    for name, policy in sorted(policies.items(), key=lambda item: not item[1].fetches):
        if not policy.fetches:
            step.fetch()
        given[name] = policy.observe(step, states[name])
    step.fetch()
    verdicts = [given[name] for name in policies]
    measured = {name: float(value) for verdict in verdicts for name, value in verdict.measurements.items()}
    if unknown := measured.keys() - measures.keys():
        raise KeyError(
            f"{', '.join(sorted(unknown))} measured, but not declared in `measures`; "
            f"declared: {', '.join(measures) or 'nothing'}"
        )
    asked = [verdict for verdict in verdicts if verdict.cut is not None]
    # Of equally wide ones the way back to what was kept: whose it is has found that better than the source.
    widest = min(asked, key=lambda verdict: (verdict.cut or 0, verdict.target != "kept"), default=verdicts[-1])
    finite = {name: value for name, value in measured.items() if math.isfinite(value)}
    return dataclasses.replace(widest, keeps=any(verdict.keeps for verdict in verdicts), measurements=finite)


def carry_out(verdict: Verdict, arena: Arena, states: Mapping[str, State], optimizer: torch.optim.Optimizer) -> None:
    """Reset parameters, episode state and optimiser as the verdict says."""
    method = states["method"]
    if verdict.keeps:
        states[KEPT].update({PARAMETERS: arena.values.clone(), **_layered(method)})
    if verdict.cut is None:
        return
    anchor = method.anchor if verdict.target == "anchor" else None
    if anchor is None:
        arena.restore(verdict.cut)
    for state in states.values():
        state.restart(verdict.cut)
    if verdict.target == "kept":
        kept = states[KEPT]
        arena.assign(kept.tensor(PARAMETERS))
        method.update({name: _copy(kept.optional_tensor(name)) for name in kept if name != PARAMETERS})
    if anchor is not None:
        method[anchor] = torch.cat([arena.values[: verdict.cut], arena.source[verdict.cut :]])
    if not verdict.keep_optimizer:
        optimizer.state.clear()
