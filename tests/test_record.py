"""Records and callbacks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import tidefast
from tidefast.core.measurement import Measurement
from tidefast.resets import Reset, Verdict
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


@dataclass(frozen=True)
class Surprise(Reset):
    """A policy of somebody else's, which measures something of its own."""

    measures: ClassVar[Mapping[str, Measurement]] = {"surprise": Measurement("How unexpected the batch was.", "nats")}
    value: float = 0.25

    def observe(self, step, state):
        return Verdict(measurements={"surprise": self.value})


def test_a_record_has_what_any_policy_measures(tmp_path):
    history, lines = tidefast.History(), tidefast.JsonLines(tmp_path / "log.jsonl")
    adapter = tidefast.adapt(small_network(), "tent", reset=Surprise(), callbacks=[history, lines])
    adapter(torch.rand(4, 3, 16, 16))
    lines.close()
    assert adapter.measures == Surprise.measures
    assert adapter.last.measurements == {"surprise": 0.25}
    assert [record.measurements for record in history] == [{"surprise": 0.25}]
    assert json.loads((tmp_path / "log.jsonl").read_text())["measurements"] == {"surprise": 0.25}


def test_a_methods_own_rule_and_the_callers_policy_both_measure_and_the_latter_wins():
    @dataclass(frozen=True)
    class RunningLoss(Surprise):
        measures: ClassVar[Mapping[str, Measurement]] = {"running_loss": Measurement("Another one.")}

        def observe(self, step, state):
            return Verdict(measurements={"running_loss": -1.0})

    for policy, expected in ((Surprise(), {"running_loss", "surprise"}), (RunningLoss(), {"running_loss"})):
        adapter = tidefast.adapt(small_network(), tidefast.methods.SAR(entropy_margin=2.0), reset=policy)
        adapter(torch.rand(8, 3, 16, 16))
        assert adapter.last.measurements.keys() == adapter.measures.keys() == expected
        assert (adapter.last.measurements["running_loss"] == -1.0) == isinstance(policy, RunningLoss)


def test_what_is_not_finite_was_not_measured():
    class Unsure(Surprise):
        def observe(self, step, state):
            return Verdict(measurements={"surprise": math.nan})

    adapter = tidefast.adapt(small_network(), "tent", reset=Unsure())
    adapter(torch.rand(4, 3, 16, 16))
    assert adapter.last.measurements == {}


def test_a_measurement_must_be_declared_under_a_name_that_is_free():
    class Undeclared(Surprise):
        measures: ClassVar[Mapping[str, Measurement]] = {}

    adapter = tidefast.adapt(small_network(), "tent", reset=Undeclared())
    with pytest.raises(KeyError, match="surprise measured, but not declared"):
        adapter(torch.rand(4, 3, 16, 16))
    for name, expected in (("loss", "choose another"), ("Surprise!", "small letters")):
        with pytest.raises(ValueError, match=expected):
            type("Wrong", (Surprise,), {"measures": {name: Measurement("Whatever.")}})
    with pytest.raises(TypeError, match="expected a Measurement"):
        type("Wrong", (Surprise,), {"measures": {"surprise": "How unexpected the batch was."}})
