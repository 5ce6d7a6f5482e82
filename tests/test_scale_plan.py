"""The plan past these machines: its simulation, with numbers that can be checked by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import scale
import torch

ASSUMED = scale.Assumed(nodes=10, streams=10_000)
NETWORK = scale.Measured("bundled-resnet", 0.1, 2e9, 3e8, 100, 2e4, 3e4, 1e-3, 1e-3)


def test_the_use_of_a_resource_is_what_is_asked_by_what_there_is():
    used = dict(scale.loads(NETWORK, ASSUMED, (700.0, 1e-4), 200))
    assert used["cores, steps"] == pytest.approx(1000 / 10 * 0.1 / 16)
    assert used["disk of a node, snapshots"] == pytest.approx(1000 * 3e4 / 30 / 1e9)
    twice = dict(scale.loads(NETWORK, replace(ASSUMED, period=5.0), (700.0, 1e-4), 200))
    assert twice["cores, steps"] == pytest.approx(2 * used["cores, steps"])
    assert (
        twice["disk of a node, snapshots"] == used["disk of a node, snapshots"]
    )  # each stream is written once at most


def test_nobody_waits_on_an_idle_node_and_everybody_on_a_full_one():
    idle, full = scale.waiting(ASSUMED, 0.01, 0.05), scale.waiting(ASSUMED, 0.01, 1.2)
    assert idle[0] == pytest.approx(0.01)
    assert full[0] > 100 * 0.01


def test_a_lost_node_is_shared_out_better_over_more_partitions():
    assert scale.imbalance(ASSUMED, 10)[1] > 1.8
    assert scale.imbalance(ASSUMED, 160)[1] < 1.4


def test_traffic_counts_what_an_operation_reads_and_writes():
    left, right = torch.ones(10), torch.ones(10)
    with scale.Traffic() as traffic:
        left + right
    assert (traffic.launches, traffic.bytes) == (1, 3 * 10 * 4)


def test_a_stream_costs_the_metrics_what_the_page_says():
    page = (Path(__file__).parents[1] / "docs" / "scale.md").read_text()
    said = int(re.search(r"(\d+) bytes of `/metrics`", page)[1])
    each = (scale.metrics_of(400)[0] - scale.metrics_of(200)[0]) / 200
    assert each == pytest.approx(said, rel=0.1)
