"""Months in miniature: ten thousand steps, and thirty thousand, in flat memory."""

from __future__ import annotations

import functools
import gc
import resource

import pytest
import torch
from torch import nn

import tidefast
from tidefast import methods, resets


@pytest.mark.parametrize("steps", [10_000, pytest.param(30_000, marks=pytest.mark.slow)])
def test_memory_is_flat_over_many_steps(steps: int):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    adapter = tidefast.adapt(
        net,
        methods.ETA(entropy_margin=1.0, similarity_margin=2.0),
        reset=resets.ASR(alpha0=0.9),
        optimizer=functools.partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    )
    batches = torch.rand(64, 8, 4)
    count, readings = 0, []
    for step in range(steps):
        adapter(batches[step % 64])
        count += adapter.last.reset_fraction > 0
        if step in (steps // 5, steps - 1):
            gc.collect()
            objects = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
            readings.append((objects, adapter.numbers_held(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    (objects, held, peak), (objects_later, held_later, peak_later) = readings
    assert count > 10
    assert objects_later <= objects
    assert held_later == held
    assert peak_later - peak < 0.08 * steps  # KiB; an extra float per step and parameter would be ten times that
