"""Verdicts: the policies of an adapter are asked for theirs, and the one that reaches furthest is carried out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch

from tidefast.core.arena import Arena
from tidefast.core.measurement import Measurement
from tidefast.core.state import State
from tidefast.core.step import Step
from tidefast.resets.base import Reset, Verdict


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
    widest = min(asked, key=lambda verdict: verdict.cut or 0, default=verdicts[-1])
    return dataclasses.replace(widest, measurements={n: v for n, v in measured.items() if math.isfinite(v)})


def carry_out(verdict: Verdict, arena: Arena, states: Mapping[str, State], optimizer: torch.optim.Optimizer) -> None:
    """Reset parameters, episode state and optimiser as the verdict says."""
    if verdict.cut is None:
        return
    anchor = states["method"].anchor if verdict.target == "anchor" else None
    if anchor is None:
        arena.restore(verdict.cut)
    for state in states.values():
        state.restart(verdict.cut)
    if anchor is not None:
        states["method"][anchor] = torch.cat([arena.values[: verdict.cut], arena.source[verdict.cut :]])
    if not verdict.keep_optimizer:
        optimizer.state.clear()
