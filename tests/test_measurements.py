"""What a policy measures is carried everywhere, whoever wrote the policy."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from tidefast import bench, cli
from tidefast.bench import ledger
from tidefast.core.measurement import RESERVED, STANDARD, Measurement
from tidefast.resets import Distribution, Reset, Verdict


@dataclass(frozen=True)
class Surprise(Reset):
    """A policy of somebody else's, which measures how far the batch's number is beyond the third."""

    measures: ClassVar[Mapping[str, Measurement]] = {"surprise": Measurement("How unexpected the batch was.", "nats")}

    def observe(self, step, state):
        return Verdict(measurements={"surprise": step.number - 3.0 if step.number > 1 else float("nan")})


def run(folder, reset, steps=5, **options):
    made = bench.Experiment(f"drift:steps={steps}", "tent", reset=reset, batch=8)
    return bench.run(made, folder, **options)


def test_a_run_has_a_column_for_each_measurement_of_its_policy(tmp_path):
    calls = iter((False, False, False, True))
    reset = f"{__name__}:Surprise"
    partial = run(tmp_path / "run", reset, snapshot_every=2, should_stop=lambda: next(calls))
    assert not partial.complete
    assert np.array_equal(partial.steps["surprise"], [np.nan, -1.0, 0.0, 1.0], equal_nan=True)
    done = run(tmp_path / "run", reset)
    assert np.array_equal(done.steps["surprise"], [np.nan, -1.0, 0.0, 1.0, 2.0], equal_nan=True)
    assert done.measures == Surprise.measures
    assert list(done.steps)[-1] == "surprise"


def test_the_columns_of_a_run_with_asr_are_what_they_were(tmp_path):
    done = run(tmp_path / "run", "asr", steps=2)
    assert list(done.steps) == [
        "step",
        "images",
        "correct",
        "selected",
        "loss",
        "concentration",
        "concentration_mean_of_softmax",
        "concentration_without_1",
        "concentration_without_10_percent",
        "threshold",
        "inconsistency",
        "momentum",
        "penalty",
        "reset_fraction",
        "nonfinite",
        "skipped",
        "predicted",
        "labels",
        "likelihood_loss",
        "brier_score",
        "bin_images",
        "bin_correct",
        "bin_confidence",
    ]
    assert done.measures == {}
    with pytest.raises(KeyError, match="no column 'distance'; there are step, images"):
        done.steps["distance"]


def test_distribution_measures_its_distance(tmp_path):
    done = run(tmp_path / "run", "distribution:short=1,long=2")
    assert np.isfinite(done.steps["distance"]).all()
    assert (done.steps["distance"] > 0).all()
    assert np.isfinite(done.steps["usual_distance"]).tolist()[:3] == [False, False, True]
    assert done.steps["usual_distance"][2] == pytest.approx(done.steps["distance"][:2].mean())
    assert done.steps["recent_distance"][2] == pytest.approx(done.steps["distance"][1])
    assert done.measures == Distribution.measures


def test_a_report_draws_what_its_policies_measure(tmp_path):
    from tidefast import report

    histories = [
        report.history_of(run(tmp_path / reset, reset), reset, reset.upper())
        for reset in ("asr", "distribution:short=1,long=2")
    ]
    page = report.render(report.ReportData("Two", histories, "asr", ["a", "b"]))
    assert 'data-plot="distance-distribution:short=1,long=2"' in page
    assert "Distance of DISTRIBUTION:SHORT=1,LONG=2 against its recent distance and usual distance; 0 resets." in page
    assert "Distance of the normalisation layers' outputs from those of source data." in html.unescape(page)
    assert 'data-plot="concentration-asr"' in page
    assert "What other policies measure" not in report.render(
        report.ReportData("One", histories[:1], "asr", ["a", "b"])
    )


def test_the_page_of_runs_draws_what_a_policy_of_ones_own_measures(tmp_path):
    run(tmp_path / "runs" / "a", f"{__name__}:Surprise")
    run(tmp_path / "runs" / "b", "asr")
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "tables.txt")]) == 0
    page = (tmp_path / "runs" / "report.html").read_text()
    assert re.findall(r'data-plot="(surprise-[^"]*)"', page) == ["surprise-s0c0"]
    assert "Surprise of Tent + Surprise; 0 resets." in page


def test_a_list_of_policies_tells_what_they_measure(capsys):
    assert cli.main(["list", "resets", "distribution", "--long"]) == 0
    said = "measures distance: Distance of the normalisation layers' outputs from those of source data."
    assert said in capsys.readouterr().out


def test_no_measurement_takes_a_name_that_a_run_or_the_service_uses():
    pytest.importorskip("prometheus_client")
    from tidefast.serve.metrics import Metrics

    columns = {*ledger.Ledger.__new__(ledger.Ledger).names(ledger.TIMING), *ledger._SCHEMA.names}
    metrics = {family.name for family in Metrics(1).read().collect() if family.name.startswith("tidefast_stream_")}
    taken = columns | {name.removeprefix("tidefast_stream_") for name in metrics}
    assert taken - RESERVED == STANDARD.keys()


def test_the_service_shows_what_any_policy_measures(tmp_path):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from tidefast.serve.http import make_app
    from tidefast.serve.service import Service
    from tidefast.serve.settings import Settings
    from tidefast.testing import small_network

    settings = Settings(model="small", state=str(tmp_path), max_wait=0.0)
    service = Service(settings, small_network(), {"method": "tent", "reset": Surprise()}, size=(16, 16))
    with TestClient(make_app(service), base_url="http://127.0.0.1") as client:
        for _ in range(4):
            file = io.BytesIO()
            np.save(file, np.random.default_rng(0).random((4, 3, 16, 16), np.float32))
            kind = {"Content-Type": "application/x-npy"}
            assert client.post("/v1/streams/camera/adapt", content=file.getvalue(), headers=kind).status_code == 200
        assert client.get("/v1/streams/camera").json()["last"]["measurements"]["surprise"] == 1.0
        history = client.get("/v1/streams/camera/history").json()
        assert [record["measurements"].get("surprise") for record in history] == [None, -1.0, 0.0, 1.0]
        text = client.get("/metrics").text
        assert 'tidefast_stream_surprise{stream="camera"} 1.0' in text
        assert "# HELP tidefast_stream_surprise How unexpected the batch was." in text
        described = client.get("/v1/info").json()["measurements"]
        assert described["surprise"] == {"description": "How unexpected the batch was.", "unit": "nats", "beside": None}
