"""The service under load: every answer is that of a lone adapter; benchmarks/load.py does the same at scale."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import torch

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="left out: httpx is not installed")

import load
import load_together
import serving


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "connections"),
    [
        ([], 4),
        (["--workers", "2", "--resident", "3", "--snapshot-every", "0.2", "--keep", "2"], 2),
    ],
    ids=["micro-batches", "two workers, idle streams on disk, snapshots all the time"],
)
def test_every_answer_under_load_is_that_of_a_lone_adapter(tmp_path, options, connections):
    todo = load.orders(streams=12, requests=6, share_bad=0.25, seed=connections)
    bad = Counter(order.reason for queue in todo.values() for order in queue if isinstance(order, load.Bad))
    sent = sum(len(order) for queue in todo.values() for order in queue if not isinstance(order, load.Bad))
    assert len(bad) >= 4
    with serving.serving(tmp_path / "state", "--max-body", str(load.MAX_BODY), *options) as service:
        outcome = asyncio.run(load.crowded(service.port, todo, connections))
        with service.client() as client:
            numbers = client.get("/metrics").text
            streams = {one["name"]: one["step"] for one in client.get("/v1/streams").json()}
        assert service.process.poll() is None
    assert outcome.surprises == []
    assert outcome.refused == bad
    assert outcome.images == sent
    row = load.Row("test")
    row.compare(outcome, adapters := {})
    assert row.wrong == 0
    assert streams == {name: adapter.step for name, adapter in adapters.items()}
    assert row.steps < len(outcome.answers) if connections > 2 else row.steps <= len(outcome.answers)
    for reason, count in bad.items():
        assert f'tidefast_rejected_total{{reason="{reason}"}} {float(count)}\n' in numbers
    assert f"tidefast_images_total {float(sent)}\n" in numbers
    for answer in outcome.answers:
        classes = [one["class"] for one in answer.said["predictions"]]
        assert classes == answer.logits.argmax(1).tolist()
        sure = torch.tensor([one["probability"] for one in answer.said["predictions"]])
        assert torch.allclose(sure, answer.logits.softmax(1).amax(1), atol=1e-6)


@pytest.mark.slow
def test_streams_served_together_are_answered_as_alone_within_rounding(tmp_path):
    todo = load.orders(streams=12, requests=6, share_bad=0.25, seed=1)
    bad = Counter(order.reason for queue in todo.values() for order in queue if isinstance(order, load.Bad))
    options = ["--together", "8", "--resident", "5", "--snapshot-every", "0.2", "--keep", "2"]
    with serving.serving(tmp_path / "state", "--max-body", str(load.MAX_BODY), *options) as service:
        outcome = asyncio.run(load.crowded(service.port, todo, 2))
        with service.client() as client:
            streams = {one["name"]: one["step"] for one in client.get("/v1/streams").json()}
    assert outcome.surprises == []
    assert outcome.refused == bad
    steps = serving.steps_of(outcome.answers)
    assert streams == {name: own[-1].number for name, own in steps.items()}
    assert load_together.largest_difference(outcome.answers, gather=16) < 1e-5


def test_the_comparison_notices_one_wrong_bit():
    adapter = serving.lone()
    levels = serving.pictures(6)
    logits = adapter(serving.as_tensor(levels))
    said = {"stream": "x", "step": 1, "batch": {"size": 6, "offset": 0}, "logits": logits.tolist()}
    outcome = load.Outcome([serving.Answer(levels, said)], seconds=1.0)
    row = load.Row("test")
    row.compare(outcome, {})
    assert row.wrong == 0
    logits.view(torch.int32)[2, 3] ^= 1
    said["logits"] = logits.tolist()
    row.compare(outcome, {})
    assert row.wrong == 1
    said["batch"]["size"] = 7
    with pytest.raises(ValueError, match="has 6 images"):
        row.compare(outcome, {})
