"""ASR: adaptive and selective reset, with knowledge recovery and on-the-fly adjustment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, cast

import torch
from torch import Tensor

from holdfast.arena import Rounding, Unit
from holdfast.network import Network
from holdfast.resets.asr import accumulations, expressions, extents, measures, triggers
from holdfast.resets.asr.accumulations import Accumulation
from holdfast.resets.asr.expressions import Momentum, Strength
from holdfast.resets.asr.extents import Extent
from holdfast.resets.asr.measures import Measure
from holdfast.resets.asr.part import chosen
from holdfast.resets.asr.triggers import Trigger
from holdfast.resets.base import Reset, Target, Verdict, registry
from holdfast.source import SourceData
from holdfast.state import Field, State
from holdfast.step import Step
from holdfast.validation import require_choice, require_number

Spelled: TypeAlias = str | Mapping[str, Any]
"""A part by name, such as "interval:every=512", or as a mapping with its name and options."""


@registry.register("asr")
@dataclass(frozen=True)
class ASR(Reset):
    """Resets when prediction concentration exceeds its long-term average, and only the deepest layers.

    After each step, with C_t the concentration, C-bar its moving average and phi_t the inconsistency:

    - when: C_t > C-bar of t-1 (eq. 1, 2); otherwise C-bar follows C_t with momentum mu_C;
    - where: the deepest share r_t = min(1, r0 + lambda_r (C_t - C-bar)) of the layers (eq. 3);
    - recovery: the loss gains lambda_F sum_k F_k (theta_k - theta-bar_k)^2 (eq. 4), where F and theta-bar
      average squared gradients and parameters evenly since the last reset, and those averages by EMA over resets;
    - adjustment: lambda_F = lambda0 phi^2 (of the step before) and mu_C = mu0 phi + 1 - mu0 (eq. 6, 7).

    Each of its parts (`measure`, `when`, `extent`, `accumulation`, `strength`, `momentum`) can be exchanged, by name or
    by an object of one's own; `holdfast.resets.ablations` has the paper's variants. The switches below them choose
    between the paper's text and its released code where they differ; `ASR.paper` and `ASR.reference` set all of them,
    and docs/fidelity.md tells what each one does.

    >>> ASR(when="interval:every=512", extent="full").when
    Interval(every=512)
    """

    prepared_with: ClassVar[tuple[str, ...]] = ("measure_settings",)

    alpha0: float = 0.5
    """C-bar starts at -ln(alpha0 x classes): the larger, the sooner the first reset can come."""
    mu0: float = 0.15
    """Range of the momentum of C-bar."""
    lambda0: float = 5.0
    """Largest weight of the recovery term; 0 turns recovery off."""
    r0: float = 0.5
    """Smallest share of layers that a reset takes."""
    lambda_r: float = 20.0
    """How fast the share grows with the excess of concentration."""
    mu_fisher: float = 0.9
    mu_theta: float = 0.9
    measure: Measure | Spelled = "softmax-of-mean"
    """How concentrated predictions are: softmax-of-mean, mean-of-softmax, without-largest, spread, probe."""
    when: Trigger | Spelled = "adaptive"
    """When to reset: adaptive (with delay=, factor=), interval (every=)."""
    extent: Extent | Spelled = "proportional"
    """How much to reset: proportional, fixed (part=), full."""
    accumulation: Accumulation | Spelled = "hybrid"
    """What recovery pulls to: hybrid, cumulative, exponential, none."""
    strength: Strength | Spelled = "squared"
    """The expression of lambda_F: squared, linear, inverse, inconsistency, constant."""
    momentum: Momentum | Spelled = "linear"
    """The expression of mu_C: linear, squared, inverse, inconsistency, constant (value=)."""
    target: Target = "live"
    """What is reset: the adapted parameters, or the method's anchor where it has one (released code, ROID)."""
    unit: Unit = "layer"
    """Whether depth is counted in layers or in single tensors, which may split a layer's scale from its shift."""
    rounding: Rounding = "nearest"
    fisher: Literal["unsupervised", "total"] = "unsupervised"
    """Whether F squares the gradient of the method's loss or of the loss with the recovery term."""
    accumulator_init: Literal["first", "zero"] = "first"
    """Whether F and theta-bar start as the first average or at zero."""
    source_stats: Literal["batch", "running"] = "batch"
    """Statistics under which the source model answers when phi is measured."""
    clear_optimizer: bool = True
    """Whether a reset forgets the optimiser's moments, of all layers."""

    def __post_init__(self) -> None:
        require_number("alpha0", self.alpha0, 0.0, low_open=True)
        require_number("mu0", self.mu0, 0.0, 1.0)
        require_number("lambda0", self.lambda0, 0.0)
        require_number("r0", self.r0, 0.0, 1.0)
        require_number("lambda_r", self.lambda_r, 0.0)
        require_number("mu_fisher", self.mu_fisher, 0.0, 1.0)
        require_number("mu_theta", self.mu_theta, 0.0, 1.0)
        require_choice("target", self.target, ("live", "anchor"))
        require_choice("unit", self.unit, ("layer", "tensor"))
        require_choice("rounding", self.rounding, ("nearest", "ceil-kept"))
        require_choice("fisher", self.fisher, ("unsupervised", "total"))
        require_choice("accumulator_init", self.accumulator_init, ("first", "zero"))
        require_choice("source_stats", self.source_stats, ("batch", "running"))
        for name, known, kind in _PARTS:
            object.__setattr__(self, name, chosen(known, kind, getattr(self, name)))

    @classmethod
    def paper(cls, **changes: Any) -> ASR:
        """What the paper's text says, to the letter."""
        text = {"fisher": "total", "accumulator_init": "zero", "source_stats": "running"}
        return cls(**{**text, **changes})

    @classmethod
    def reference(cls, **changes: Any) -> ASR:
        """What the authors' released code does."""
        return cls(**{"target": "anchor", "unit": "tensor", "rounding": "ceil-kept", **changes})

    @classmethod
    def for_resnet50(cls, **changes: Any) -> ASR:
        """The published hyperparameters for ResNet-50 on ImageNet-sized problems: the defaults."""
        return cls(**changes)

    @classmethod
    def for_vit(cls, **changes: Any) -> ASR:
        """The published hyperparameters for ViT-B/16."""
        return cls(**{"alpha0": 5e-4, "mu0": 1e-3, "lambda_r": 0.1, **changes})

    @property
    def needs_source(self) -> str | None:
        return cast(Measure, self.measure).needs_source

    @property
    def measure_settings(self) -> dict[str, Any]:
        """The measure's name and options."""
        measure = cast(Measure, self.measure)
        return {"name": measure.name, **vars(measure)}

    @property
    def recovers(self) -> bool:
        """Whether there is knowledge recovery."""
        return self.lambda0 > 0 and cast(Accumulation, self.accumulation).remembers

    @property
    def compares(self) -> bool:
        """Whether anything depends on the inconsistency, and so on the source model's answers."""
        strength, momentum = cast(Strength, self.strength), cast(Momentum, self.momentum)
        return (self.recovers and strength.adapts) or (cast(Trigger, self.when).watches and momentum.adapts)

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        return cast(Measure, self.measure).prepare(network, source)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        def zeros() -> Tensor:
            return torch.zeros_like(network.arena.values)

        size = (len(network.arena),)
        start = -math.log(self.alpha0 * num_classes)
        fields = [
            Field("threshold", lambda: start),
            Field("inconsistency", lambda: 0.0, lifetime="stream"),
            Field("steps", lambda: 0),
        ]
        if self.recovers:
            average = zeros if self.accumulator_init == "zero" else lambda: None
            lifetime = cast(Accumulation, self.accumulation).lifetime
            fields += [
                Field("gathered", lambda: 0, lifetime),
                Field("fisher_sum", zeros, lifetime),
                Field("theta_sum", zeros, lifetime),
                Field("fisher", average, lifetime="stream", shape=size),
                Field("theta", average, lifetime="stream", shape=size),
            ]
        return fields

    def penalty(self, state: State) -> float:
        """lambda_F of the coming step (eq. 6), from the last inconsistency measured."""
        return cast(Strength, self.strength).of(state.number("inconsistency"), self.lambda0) if self.recovers else 0.0

    def adjust_gradient(self, step: Step, state: State) -> None:
        if not self.recovers:
            return
        arena, accumulation = step.network.arena, cast(Accumulation, self.accumulation)
        gradient, total = arena.gradients, state.tensor("fisher_sum")
        accumulation.gather(state.tensor("theta_sum"), arena.values, None, self.mu_theta)
        if self.fisher == "unsupervised":
            accumulation.gather(total, gradient, gradient, self.mu_fisher)
        fisher, theta, weight = state.optional_tensor("fisher"), state.optional_tensor("theta"), self.penalty(state)
        if fisher is not None and theta is not None and weight > 0:
            gradient.addcmul_(fisher, arena.values - theta, value=2.0 * weight)
        if self.fisher == "total":
            accumulation.gather(total, gradient, gradient, self.mu_fisher)
        state["gathered"] = int(state.number("gathered")) + 1

    def observe(self, step: Step, state: State) -> Verdict:
        trigger, penalty = cast(Trigger, self.when), self.penalty(state)
        concentration, inconsistency = self._measured(step)
        if inconsistency is not None:
            state["inconsistency"] = inconsistency
        steps = int(state.number("steps")) + 1
        state["steps"] = steps
        if not trigger.watches:
            fires, excess = trigger.fires(math.nan, math.nan, steps), 0.0
            fraction, cut = self._reset(step, state, excess) if fires else (0.0, None)
            return Verdict(
                fraction, cut, self.target, not self.clear_optimizer, inconsistency=inconsistency, penalty=penalty
            )
        threshold = state.number("threshold")
        momentum = cast(Momentum, self.momentum).of(state.number("inconsistency"), self.mu0)
        fraction, cut = 0.0, None
        if trigger.fires(concentration, threshold, steps):
            fraction, cut = self._reset(step, state, concentration - threshold)
        else:
            state["threshold"] = momentum * threshold + (1.0 - momentum) * concentration
        return Verdict(
            fraction,
            cut,
            self.target,
            not self.clear_optimizer,
            concentration,
            threshold,
            inconsistency,
            momentum,
            penalty,
        )

    def _measured(self, step: Step) -> tuple[float, float | None]:
        """C_t (nan where nothing depends on it) and phi_t (None likewise), fetched from the device together."""
        logits = step.answer
        found = [cast(Measure, self.measure)(step) if cast(Trigger, self.when).watches else logits.new_tensor(math.nan)]
        if self.compares:
            source = step.source_logits(running_statistics=self.source_stats == "running")
            found.append((source.argmax(1) != logits.argmax(1)).to(logits.dtype).mean())
        concentration, *rest = torch.stack(found).tolist()
        return concentration, rest[0] if rest else None

    def _reset(self, step: Step, state: State, excess: float) -> tuple[float, int]:
        """How much goes, as a share and as a position; what was gathered goes into F and theta-bar (eq. 5)."""
        fraction = cast(Extent, self.extent).share(excess, self.r0, self.lambda_r)
        if self.recovers:
            gathered, fold = int(state.number("gathered")), cast(Accumulation, self.accumulation).fold
            for name, momentum in (("fisher", self.mu_fisher), ("theta", self.mu_theta)):
                state[name] = fold(state.optional_tensor(name), state.tensor(f"{name}_sum"), gathered, momentum)
        return fraction, step.network.arena.cut(fraction, self.unit, self.rounding)


_PARTS: tuple[tuple[str, Any, Any], ...] = (
    ("measure", measures.registry, Measure),
    ("when", triggers.registry, Trigger),
    ("extent", extents.registry, Extent),
    ("accumulation", accumulations.registry, Accumulation),
    ("strength", expressions.strengths, Strength),
    ("momentum", expressions.momenta, Momentum),
)
