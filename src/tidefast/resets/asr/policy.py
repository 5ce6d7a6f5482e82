"""ASR: adaptive and selective reset, with knowledge recovery and on-the-fly adjustment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from tidefast.core.arena import Rounding, Unit
from tidefast.core.constraints import NonNegative, Positive, Share
from tidefast.core.measurement import STANDARD, Measurement
from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.core.state import Field, State
from tidefast.core.step import Step
from tidefast.resets.asr import accumulations, expressions, extents, triggers
from tidefast.resets.asr.accumulations import Accumulation
from tidefast.resets.asr.expressions import Momentum, Strength
from tidefast.resets.asr.extents import Extent
from tidefast.resets.asr.measures import Measure
from tidefast.resets.asr.measures import registry as concentration_measures
from tidefast.resets.asr.part import PartField
from tidefast.resets.asr.triggers import Trigger
from tidefast.resets.base import Reset, Target, Verdict, registry


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
    by an object of one's own; `tidefast.resets.ablations` has the paper's variants. The switches below them choose
    between the paper's text and its released code where they differ; `ASR.paper` and `ASR.reference` set all of them,
    and docs/fidelity.md tells what each one does.

    >>> ASR(when="interval:every=512", extent="full").when
    Interval(every=512)
    """

    quick: ClassVar[Mapping[str, Any]] = {"alpha0": 0.97, "lambda_r": 1.0}

    prepared_with: ClassVar[tuple[str, ...]] = ("measure_settings",)
    measures: ClassVar[Mapping[str, Measurement]] = STANDARD

    fetches: ClassVar[bool] = True

    alpha0: Positive = 0.5
    """C-bar starts at -ln(alpha0 x classes): the larger, the sooner the first reset can come."""
    mu0: Share = 0.15
    """Range of the momentum of C-bar."""
    lambda0: NonNegative = 5.0
    """Largest weight of the recovery term; 0 turns recovery off."""
    r0: Share = 0.5
    """Smallest share of layers that a reset takes."""
    lambda_r: NonNegative = 20.0
    """How fast the share grows with the excess of concentration."""
    mu_fisher: Share = 0.9
    mu_theta: Share = 0.9
    measure: PartField[Measure] = PartField(concentration_measures, "softmax-of-mean")
    """How concentrated predictions are: softmax-of-mean, mean-of-softmax, without-largest, spread, probe."""
    when: PartField[Trigger] = PartField(triggers.registry, "adaptive")
    """When to reset: adaptive (with delay=, factor=), interval (every=)."""
    extent: PartField[Extent] = PartField(extents.registry, "proportional")
    """How much to reset: proportional, fixed (part=), full."""
    accumulation: PartField[Accumulation] = PartField(accumulations.registry, "hybrid")
    """What recovery pulls to: hybrid, cumulative, exponential, none."""
    strength: PartField[Strength] = PartField(expressions.strengths, "squared")
    """The expression of lambda_F: squared, linear, inverse, inconsistency, constant."""
    momentum: PartField[Momentum] = PartField(expressions.momenta, "linear")
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
        return self.measure.needs_source

    @property
    def measure_settings(self) -> dict[str, Any]:
        """The measure's name and options."""
        return {"name": self.measure.name, **vars(self.measure)}

    @property
    def recovers(self) -> bool:
        """Whether there is knowledge recovery."""
        return self.lambda0 > 0 and self.accumulation.remembers

    @property
    def compares(self) -> bool:
        """Whether anything depends on the inconsistency, and so on the source model's answers."""
        return (self.recovers and self.strength.adapts) or (self.when.watches and self.momentum.adapts)

    @property
    def compares_with(self) -> Literal["batch", "running"] | None:
        return self.source_stats if self.compares else None

    def prepare(self, network: Network, source: SourceData) -> dict[str, Tensor]:
        return self.measure.prepare(network, source)

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        values, accumulation = network.arena.values, self.accumulation
        dtype = torch.float64 if accumulation.precise else values.dtype
        start = -math.log(self.alpha0 * num_classes)
        fields = [
            Field("threshold", lambda: start),
            Field("inconsistency", lambda: 0.0, lifetime="stream"),
            Field("steps", lambda: 0),
        ]
        if self.recovers:

            def total() -> Tensor:
                return torch.zeros_like(values, dtype=dtype)

            def average() -> Tensor | None:
                return torch.zeros_like(values) if self.accumulator_init == "zero" else None

            fields += [
                Field("gathered", lambda: 0, accumulation.lifetime),
                Field("fisher_sum", total, accumulation.lifetime),
                Field("theta_sum", total, accumulation.lifetime),
                Field("fisher", average, lifetime="stream", shape=tuple(values.shape)),
                Field("theta", average, lifetime="stream", shape=tuple(values.shape)),
            ]
        return fields

    def penalty(self, state: State) -> float:
        """lambda_F of the coming step (eq. 6), from the last inconsistency measured."""
        return self.strength.of(state.number("inconsistency"), self.lambda0) if self.recovers else 0.0

    def adjust_gradient(self, step: Step, state: State) -> None:
        if not self.recovers:
            return
        arena, gather = step.network.arena, self.accumulation.gather
        gradient, total = arena.gradients, state.tensor("fisher_sum")
        gather(state.tensor("theta_sum"), arena.values, None, self.mu_theta)
        if self.fisher == "unsupervised":
            gather(total, gradient, gradient, self.mu_fisher)
        fisher, theta, weight = state.optional_tensor("fisher"), state.optional_tensor("theta"), self.penalty(state)
        if fisher is not None and theta is not None and weight > 0:
            gradient.addcmul_(fisher, arena.values - theta, value=2.0 * weight)
        if self.fisher == "total":
            gather(total, gradient, gradient, self.mu_fisher)
        state["gathered"] = int(state.number("gathered")) + 1

    def observe(self, step: Step, state: State) -> Verdict:
        watches, penalty = self.when.watches, self.penalty(state)
        concentration, inconsistency = self._measured(step)
        if not math.isnan(inconsistency):
            state["inconsistency"] = inconsistency
        steps, threshold = int(state.number("steps")) + 1, state.number("threshold")
        state["steps"] = steps
        momentum = self.momentum.of(state.number("inconsistency"), self.mu0)
        known = math.isfinite(concentration)
        fraction, cut = 0.0, None
        if (known or not watches) and self.when.fires(concentration, threshold, steps):
            fraction, cut = self._reset(step, state, concentration - threshold if known else 0.0)
        elif known:
            state["threshold"] = momentum * threshold + (1.0 - momentum) * concentration
        measured = {"concentration": concentration, "inconsistency": inconsistency, "penalty": penalty}
        if watches:
            measured |= {"threshold": threshold, "momentum": momentum}
        return Verdict(
            fraction=fraction,
            cut=cut,
            target=self.target,
            keep_optimizer=not self.clear_optimizer,
            measurements=measured,
        )

    def _measured(self, step: Step) -> tuple[float, float]:
        """C_t and phi_t, each nan where nothing depends on it, fetched from the device together."""
        logits = step.answer
        measured = [self.measure(step)] if self.when.watches else []
        if self.compares:
            source = step.source_logits(running_statistics=self.source_stats == "running")
            measured.append((source.argmax(1) != logits.argmax(1)).to(logits.dtype).mean())
        numbers = step.fetch(*measured)
        concentration = numbers.pop(0) if self.when.watches else math.nan
        return concentration, numbers[0] if self.compares else math.nan

    def _reset(self, step: Step, state: State, excess: float) -> tuple[float, int]:
        """How much goes, as a share and as a position; what was gathered goes into F and theta-bar (eq. 5)."""
        arena, fraction = step.network.arena, self.extent.share(excess, self.r0, self.lambda_r)
        if self.recovers:
            gathered = int(state.number("gathered"))
            for name, momentum in (("fisher", self.mu_fisher), ("theta", self.mu_theta)):
                old, total = state.optional_tensor(name), state.tensor(f"{name}_sum")
                state[name] = self.accumulation.fold(old, total, gathered, momentum).to(arena.values.dtype)
        return fraction, arena.cut(fraction, self.unit, self.rounding)
