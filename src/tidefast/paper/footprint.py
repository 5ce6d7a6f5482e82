"""What contestants need: parameters that adapt, numbers held, and the time of a step against their plain method's."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from tidefast import speed
from tidefast.adapter import Adapter
from tidefast.bench import assembly
from tidefast.bench.experiment import Experiment
from tidefast.core.specification import Specification
from tidefast.resets import ASR

BATCH = 64
ROUNDS = 15


@dataclass(frozen=True)
class Needs:
    """What one contestant needs."""

    trainable: int
    held: int
    """Numbers in memory once every average exists, those of the network included."""
    network: int
    """The network's own numbers."""
    ratio: float
    """Time of a step over that of the same method without resets, both measured in turn."""


def weigh(experiments: Sequence[Experiment], *, batch: int = BATCH, rounds: int = ROUNDS) -> list[Needs]:
    """What each of some contestants needs on the stream of the first, in batches of a size; they take turns."""
    stream = assembly.stream_of(dataclasses.replace(experiments[0], batch=batch, steps=4))
    images = [batch.images for batch in stream.batches()]
    plain = [dataclasses.replace(experiment, reset=Specification("never")) for experiment in experiments]
    sides = {experiment.digest: experiment for experiment in (*plain, *experiments)}
    made = {
        key: assembly.adapter_of(experiment, assembly.model_of(experiment), stream) for key, experiment in sides.items()
    }
    times = speed.alternate({key: _caller(adapter, images) for key, adapter in made.items()}, rounds)
    needs = []
    for experiment, base in zip(experiments, plain, strict=True):
        model, arena = assembly.model_of(experiment), made[experiment.digest].network.arena
        own = sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
        against = [took / usual for took, usual in zip(times[experiment.digest], times[base.digest], strict=True)]
        needs.append(Needs(len(arena), held(experiment, images[0][:16]), own, statistics.median(against)))
    return needs


def _caller(adapter: Adapter, images: Sequence[Tensor]) -> Callable[[], Tensor]:
    """A step on the next batch: methods leave out what they have seen just before."""
    turns: Iterator[Tensor] = itertools.cycle(images)
    return lambda: adapter(next(turns))


def held(experiment: Experiment, images: Tensor) -> int:
    """Numbers held after three steps; ASR resets after the second, so that its averages and the optimiser's exist."""
    options = assembly.options_of(experiment, assembly.stream_of(experiment))
    if isinstance(options["reset"], ASR):
        options["reset"] = dataclasses.replace(options["reset"], when="interval:every=2")
    adapter = Adapter(assembly.model_of(experiment), **options)
    for _ in range(3):
        adapter(images)
    return adapter.numbers_held()
