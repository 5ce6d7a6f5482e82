"""Records and callbacks."""

from __future__ import annotations

import json

import torch

import tidefast
from tidefast.testing import small_network


def test_callbacks_see_every_adapting_call_after_it_is_done(tmp_path):
    seen = []

    def look(adapter, record):
        seen.append((adapter.step, record is adapter.last))

    lines = tidefast.JsonLines(tmp_path / "log.jsonl")
    adapter = tidefast.adapt(small_network(), "tent", reset="asr", callbacks=[look, lines])
    for _ in range(3):
        adapter(torch.rand(4, 3, 16, 16))
        adapter.predict(torch.rand(4, 3, 16, 16))
    lines.close()
    assert seen == [(1, True), (2, True), (3, True)]
    written = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in written] == [1, 2, 3]
    assert written[2] == adapter.last.as_dict()


def test_fields_that_nobody_measures_are_none():
    adapter = tidefast.adapt(small_network(), "tent")
    adapter(torch.rand(4, 3, 16, 16))
    record = adapter.last
    assert (record.concentration, record.threshold, record.inconsistency, record.momentum) == (None,) * 4
    assert record.penalty is None
    assert record.reset_fraction == 0.0
    assert record.seconds > 0
    assert record.selected == 4
