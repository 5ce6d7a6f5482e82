"""Recorded runs of the published implementations, replayed step by step in float64."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
import torch

import tidefast
from recorded import NETWORKS, TRACES, network, recorded, stream
from tidefast import methods, resets

RUNS = sorted(path.stem for path in TRACES.glob("*.npz") if path.stem not in NETWORKS)
TOLERANCE = 1e-9


def test_every_recorded_run_is_replayed():
    assert len(RUNS) == 20


def method(case: dict[str, Any]) -> methods.Method:
    shared = {
        "augment": lambda images: images.flip(-1),
        "batch_size": 16,
        "consistency": case.get("cons", True),
        "prior_correction": "released",
    }
    return {
        "tent": lambda: methods.Tent(),
        "eata": lambda: methods.ETA(entropy_margin=case.get("e0", 0.4), similarity_margin=case.get("d", 0.4)),
        "roid": lambda: methods.ROID(**shared),
        "cmf": lambda: methods.CMF(**shared),
        "sar": lambda: methods.SAR(entropy_margin=case.get("e0", 0.4), reset_constant=case.get("em", 0.2)),
    }[case["adapt"]]()


def policy(case: dict[str, Any]) -> resets.Reset:
    if case.get("asr"):  # the two recordings with an empty `asr` ran without ASR: they equal plain ETA bit for bit
        names = {"A0": "alpha0", "M0": "mu0", "P0": "lambda0", "R1": "lambda_r"}
        return resets.ASR.reference(**{names[key]: value for key, value in case["asr"].items()})
    return resets.Periodic(case["reset_every"]) if "reset_every" in case else resets.Never()


def optimizer(case: dict[str, Any]) -> Any:
    if case.get("optim") == "Adam":
        return functools.partial(torch.optim.Adam, lr=case["lr"])
    return functools.partial(torch.optim.SGD, lr=case["lr"], momentum=0.9, nesterov=case["adapt"] != "sar")


@pytest.mark.parametrize("run", RUNS)
def test_replay_agrees(run: str, record_property):
    trace, name = recorded(run), "-".join(run.split("-")[:2])
    case = json.loads(str(trace["case"]))
    adapter = tidefast.adapt(network(name), method(case), reset=policy(case), optimizer=optimizer(case), num_classes=10)
    history = tidefast.History()
    adapter.callbacks.append(history)

    logits = torch.stack([adapter(batch) for batch in stream(name)]).numpy()

    deviations = {
        "logits": np.abs(logits - trace["logits"]).max(),
        "parameters": np.abs(adapter.network.arena.values.numpy() - trace["final_params"]).max(),
    }
    if "entropy" in trace:
        measured = {
            key: np.array([getattr(r, key) for r in history]) for key in ("concentration", "threshold", "penalty")
        }
        fractions = np.array([record.reset_fraction for record in history])
        deviations |= {
            "concentration": np.abs(measured["concentration"] + trace["entropy"]).max(),
            "threshold": np.abs(measured["threshold"] + trace["threshold_before"]).max(),
            "penalty": np.abs(measured["penalty"][1:] - trace["lam_next"][:-1]).max(),
            "fraction": np.abs(fractions - (1 - trace["kept"])).max(),
        }
        assert ((fractions > 0) == (trace["reset"] == 1)).all()
    record_property("deviation", float(max(deviations.values())))
    assert [span.name for span in adapter.network.arena.tensors] == json.loads(str(trace["param_names"]))
    assert max(deviations.values()) < TOLERANCE, deviations
