"""Your own method: a loss in a frozen dataclass. Saving, resuming, resetting and safety come from its declaration.

This one pushes the best class away from the second best, on samples whose margin is above a running mean.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

import tidefast
from tidefast import models, streams
from tidefast.core.network import Network
from tidefast.core.state import Field, State
from tidefast.methods import Method, Objective, Step
from tidefast.testing import check_adapter


@tidefast.register_method("margin")
@dataclass(frozen=True)
class Margin(Method):
    """L = -mean_i (z_i,first - z_i,second), over samples whose margin is above a running mean."""

    momentum: float = 0.9

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        """What survives a step."""
        return [Field("mean", lambda: 0.0)]

    def loss(self, step: Step, state: State) -> Objective:
        """The objective of a batch; new state takes effect only if the step turns out sound."""
        first, second = step.logits.topk(2).values.unbind(1)
        margin = first - second
        chosen = margin.detach() >= state.number("mean")
        if not chosen.any():
            return Objective(loss=None, selected=0, step=False)
        mean = self.momentum * state.number("mean") + (1 - self.momentum) * float(margin.detach().mean())
        return Objective(-margin[chosen].mean(), int(chosen.sum()), updates={"mean": mean})


passed = check_adapter(lambda model: tidefast.adapt(model, "margin", reset="asr"))  # the promises of every method here
print(f"{len(passed)} checks passed, among them: {passed[0]}, {passed[4]}, {passed[6]}")

model = models.load("bundled-resnet")
optimizer = functools.partial(torch.optim.Adam, lr=1e-4)
for name in ("source", "margin"):
    adapter = tidefast.adapt(model, name, reset="asr", optimizer=optimizer)
    stream = streams.make("recurring", steps=40, batch=16, seed=0)
    hits = [adapter(batch.images).argmax(1) == batch.labels for batch in stream]
    print(f"{name}: {float(torch.cat(hits).float().mean()):.1%}")
