"""ASR: adaptive and selective reset, with knowledge recovery and on-the-fly adjustment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

from holdfast import losses
from holdfast.arena import Rounding, Unit
from holdfast.network import Network
from holdfast.resets.base import Reset, Target, Verdict, registry
from holdfast.state import Field, State
from holdfast.step import Step
from holdfast.validation import require_choice, require_number


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

    The switches below the hyperparameters choose between the paper's text and its released code where they
    differ; `ASR.paper` and `ASR.reference` set all of them, and docs/fidelity.md tells what each one does.
    """

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

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        def zeros() -> torch.Tensor:
            return torch.zeros_like(network.arena.values)

        size = (len(network.arena),)
        start = -math.log(self.alpha0 * num_classes)
        fields = [
            Field("threshold", lambda: start),
            Field("inconsistency", lambda: 0.0, lifetime="stream"),
            Field("steps", lambda: 0),
        ]
        if self.lambda0 > 0:
            average = zeros if self.accumulator_init == "zero" else lambda: None
            fields += [
                Field("fisher_sum", zeros),
                Field("theta_sum", zeros),
                Field("fisher", average, lifetime="stream", shape=size),
                Field("theta", average, lifetime="stream", shape=size),
            ]
        return fields

    def penalty(self, state: State) -> float:
        """lambda_F of the coming step (eq. 6), from the last inconsistency measured."""
        return self.lambda0 * state.number("inconsistency") ** 2

    def adjust_gradient(self, step: Step, state: State) -> None:
        if self.lambda0 == 0:
            return
        arena = step.network.arena
        gradient = arena.gradients
        fisher_sum = state.tensor("fisher_sum")
        state.tensor("theta_sum").add_(arena.values)
        if self.fisher == "unsupervised":
            fisher_sum.addcmul_(gradient, gradient)
        fisher, theta, weight = state.optional_tensor("fisher"), state.optional_tensor("theta"), self.penalty(state)
        if fisher is not None and theta is not None and weight > 0:
            gradient.addcmul_(fisher, arena.values - theta, value=2.0 * weight)
        if self.fisher == "total":
            fisher_sum.addcmul_(gradient, gradient)

    def observe(self, step: Step, state: State) -> Verdict:
        logits = step.answer
        source = step.source_logits(running_statistics=self.source_stats == "running")
        disagreeing = (source.argmax(1) != logits.argmax(1)).to(logits.dtype).mean()
        concentration, inconsistency = torch.stack([losses.concentration(logits), disagreeing]).tolist()
        threshold, penalty = state.number("threshold"), self.penalty(state)
        momentum = self.mu0 * inconsistency + 1.0 - self.mu0
        fraction, cut = 0.0, None
        state["inconsistency"] = inconsistency
        state["steps"] = int(state.number("steps")) + 1
        if concentration > threshold:
            fraction = min(1.0, self.r0 + self.lambda_r * (concentration - threshold))
            cut = step.network.arena.cut(fraction, self.unit, self.rounding)
            self._accumulate(state)
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

    def _accumulate(self, state: State) -> None:
        """Fold what was gathered since the last reset into F and theta-bar (eq. 5)."""
        if self.lambda0 == 0:
            return
        steps = state.number("steps")
        for name, momentum in (("fisher", self.mu_fisher), ("theta", self.mu_theta)):
            old, new = state.optional_tensor(name), state.tensor(f"{name}_sum") / steps
            state[name] = new if old is None else momentum * old + (1.0 - momentum) * new
