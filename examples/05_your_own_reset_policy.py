"""Your own reset policy: look at each step, answer how much to reset. It works with every method, and in a fleet.

This one resets the deeper half of the layers once the model is surer of its answers than it was at first, by a factor.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

import tidefast
from tidefast import methods, models, streams
from tidefast.core import losses
from tidefast.core.network import Network
from tidefast.core.state import Field, State
from tidefast.core.step import Step
from tidefast.resets import Reset, Verdict
from tidefast.testing import check_adapter


@tidefast.register_reset("overconfident")
@dataclass(frozen=True)
class Overconfident(Reset):
    """Resets when the mean entropy of a batch falls below `share` of its mean over the first ten batches."""

    share: float = 0.5
    part: float = 0.5

    def fields(self, network: Network, num_classes: int) -> list[Field]:
        """Of lifetime "stream": what was normal at first outlasts the resets."""
        return [Field("first", lambda: 0.0, lifetime="stream"), Field("batches", lambda: 0, lifetime="stream")]

    def observe(self, step: Step, state: State) -> Verdict:
        """Called after every update; a verdict without a cut leaves everything as it is."""
        entropy = float(losses.entropy(step.answer).mean())
        batches = int(state.number("batches")) + 1
        state["batches"] = batches
        if batches <= 10:
            state["first"] = state.number("first") + entropy / 10
        elif entropy < self.share * state.number("first"):
            return Verdict(fraction=self.part, cut=step.network.arena.cut(self.part))
        return Verdict()


print(f"{len(check_adapter(lambda model: tidefast.adapt(model, 'tent', reset='overconfident')))} checks passed")

model = models.load("bundled-resnet")
for reset in (None, "overconfident"):
    history = tidefast.History()
    optimizer = functools.partial(torch.optim.Adam, lr=1e-2)
    adapter = tidefast.adapt(model, methods.Tent(), reset=reset, optimizer=optimizer, callbacks=[history])
    stream = streams.make("recurring", steps=60, batch=16, seed=0)
    hits = torch.cat([adapter(batch.images).argmax(1) == batch.labels for batch in stream]).float()
    late, resets = float(hits[len(hits) // 2 :].mean()), sum(record.reset_fraction > 0 for record in history)
    print(f"Tent, reset={reset}: {float(hits.mean()):.1%}, second half {late:.1%}, {resets} resets")
