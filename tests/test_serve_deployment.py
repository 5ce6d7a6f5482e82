"""The service where it is deployed: settings from the environment, logs for machines."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="left out: httpx is not installed")

import serving

from tidefast import cli
from tidefast.commands import serve as command
from tidefast.commands.environment import variables
from tidefast.serve.cluster.logs import carried_lines
from tidefast.serve.settings import Settings

# -- the environment -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for variable in variables(made(), command.VARIABLES):
        monkeypatch.delenv(variable, raising=False)


def made() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    return parser


def _words(action: argparse.Action) -> list[str]:
    """Something that the option takes and that is not its default."""
    if action.nargs == 0:
        return []
    if action.choices:
        return [next(str(word) for word in action.choices if word != action.default)]
    word = {int: "77", float: "0.75"}.get(action.type, "something:lr=1")
    return [word, word] if action.nargs == "+" else [word]


@pytest.mark.parametrize("variable", variables(made(), command.VARIABLES))
def test_every_option_has_a_variable_that_means_the_same(variable, monkeypatch):
    action = variables(made(), command.VARIABLES)[variable]
    words = _words(action)
    option = action.option_strings[-1]
    expected = made().parse_args([option, *words])
    before = getattr(made().parse_args([]), action.dest)
    monkeypatch.setenv(variable, " ".join(words) or "true")
    parsed = made().parse_args([])
    assert getattr(parsed, action.dest) == getattr(expected, action.dest) != before
    monkeypatch.setenv(variable, "")
    assert getattr(made().parse_args([]), action.dest) == before


def test_an_option_wins_over_its_variable(monkeypatch):
    monkeypatch.setenv("TIDEFAST_SERVE_PORT", "1234")
    assert made().parse_args([]).port == 1234
    assert made().parse_args(["--port", "99"]).port == 99


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("PORT", "tcp://10.0.0.1:8000", "TIDEFAST_SERVE_PORT must be a whole number, got 'tcp://10.0.0.1:8000'"),
        ("MAX_WAIT", "soon", "TIDEFAST_SERVE_MAX_WAIT must be a number, got 'soon'"),
        ("ACCESS_LOG", "perhaps", "TIDEFAST_SERVE_ACCESS_LOG must be one of 1, true, yes, on, 0, false, no, off"),
        ("LOG", "xml", "TIDEFAST_SERVE_LOG must be among text, json, got 'xml'"),
        ("SIDE", "32 x", "TIDEFAST_SERVE_SIDE must be a whole number, got 'x'"),
        ("MAX_BACH", "3", "TIDEFAST_SERVE_MAX_BACH belongs to no option; did you mean TIDEFAST_SERVE_MAX_BATCH?"),
        ("MAX_BATCH", "0", "max_batch must be a whole number of at least 1, got 0 (set by TIDEFAST_SERVE_MAX_BATCH)"),
        ("METHOD", "rodi", "unknown method 'rodi'"),
    ],
)
def test_a_bad_variable_is_named_in_one_line(variable, value, told, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"TIDEFAST_SERVE_{variable}", value)
    assert cli.main(["serve", "--threads", "1"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert f"TIDEFAST_SERVE_{variable}" in error
    assert error.count("\n") == 1


def test_help_tells_of_the_variables(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    assert "--max-batch by TIDEFAST_SERVE_MAX_BATCH" in " ".join(capsys.readouterr().out.split())


# -- alarms that freeze ----------------------------------------------------------------------------------------------


def test_an_alarm_freezes_its_stream_and_no_other(tmp_path):
    blind = serving.npy(np.full((4, 3, 32, 32), np.nan, np.float32))
    seen = serving.npy(serving.pictures(8))
    kind = {"Content-Type": serving.NPY}
    options = ("--max-wait", "0", "--freeze-on-alarm", "nonfinite", "canaries", "--snapshot-every", "600")
    with serving.serving(tmp_path / "state", *options) as running, running.client() as client:

        def adapt(name: str, body: bytes) -> dict:
            return client.post(f"/v1/streams/{name}/adapt", content=body, headers=kind).raise_for_status().json()

        assert adapt("well", seen)["frozen"] is False
        for _ in range(3):
            assert adapt("blind", blind)["frozen"] is False  # also the third, which raises the alarm
        after = adapt("blind", seen)
        assert (after["frozen"], after["adapted"], after["step"]) == (True, False, 3)
        state = client.get("/v1/streams/blind").json()
        assert (state["frozen"], state["frozen_by"]) == (True, "nonfinite")
        assert [alarm["kind"] for alarm in state["alarms"]] == ["nonfinite"]
        assert adapt("well", seen)["frozen"] is False
        assert client.get("/v1/streams/well").json()["frozen_by"] is None
        assert 'tidefast_events_total{what="alarm_freeze"} 1.0' in client.get("/metrics").text
        assert "stream 'blind': alarm_freeze" in running.log.read_text()
        state = client.post("/v1/streams/blind/unfreeze").json()
        assert (state["frozen"], state["frozen_by"]) == (False, None)
        assert adapt("blind", seen)["step"] == 4  # whoever unfroze it has the last word while the alarm lasts
        client.post("/v1/streams/blind/reset").raise_for_status()
        for _ in range(3):
            adapt("blind", blind)
        assert client.get("/v1/streams/blind").json()["frozen_by"] == "nonfinite"  # a new alarm freezes again
        client.post("/v1/snapshots").raise_for_status()
        running.kill()
    with serving.serving(tmp_path / "state", *options) as running, running.client() as client:
        assert client.get("/v1/streams/blind").json()["frozen"] is True


# -- the log ---------------------------------------------------------------------------------------------------------


def _lines(text: str) -> list[dict]:
    parsed = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(line, dict) for line in parsed)
    for line in parsed:
        assert {"time", "level", "logger", "message"} <= line.keys()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    return parsed


def test_every_line_of_a_process_is_a_json_object(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEFAST_SERVE_LOG", "json")
    monkeypatch.setenv("TIDEFAST_SERVE_ACCESS_LOG", "1")
    blind = np.full((4, 3, 32, 32), np.nan, np.float32)
    name = 'a "name"\u2028 \U0001f511'
    with serving.serving(tmp_path / "state", "--max-wait", "0", "--verbose") as running:
        with running.client() as client:
            for _ in range(4):
                kind = {"Content-Type": serving.NPY}
                client.post("/v1/streams/blind/adapt", content=serving.npy(blind), headers=kind).raise_for_status()
            assert client.get("/v1/streams/none").status_code == 404
            assert client.post(f"/v1/streams/{name}/freeze").status_code in (404, 422)
            client.post("/v1/streams/blind/freeze").raise_for_status()
        running.process.send_signal(signal.SIGTERM)
        rest, _ = running.process.communicate(timeout=60)
        assert running.process.returncode == 0
        lines = _lines(running.log.read_text())
        (told,) = _lines(running.told + rest)
        assert told["address"] == running.address
    access = [line for line in lines if line["logger"] == "uvicorn.access"]
    assert [(line["method"], line["path"], line["status"]) for line in access][:2] == [
        ("POST", "/v1/streams/blind/adapt", 200)
    ] * 2
    alarms = [line for line in lines if "alarm" in line]
    assert [(line["alarm"], line["stream"], line["active"], line["level"]) for line in alarms] == [
        ("nonfinite", "blind", True, "warning")
    ]
    assert {"event": "freeze", "stream": "blind"}.items() <= next(line for line in lines if "event" in line).items()


def test_what_ray_prints_for_its_processes_is_json_too(capsys):
    with carried_lines(Settings(cluster="local", log="json")):
        own = '\x1b[36m(PartitionActor pid=7, ip=10.0.0.2)\x1b[0m {"time": "x", "message": "an {alarm}", "value": 3}'
        sys.stdout.write(f"{own}\n")
        sys.stderr.write("\x1b[36m(PartitionActor pid=7)\x1b[0m Traceback (most recent call last):\n\n")
        sys.stderr.write("a node ")
        sys.stderr.write("has died\n")
    sys.stdout.write("text again\n")
    told = capsys.readouterr()
    own, rest = told.out.splitlines()
    assert (json.loads(own), rest) == ({"time": "x", "message": "an {alarm}", "value": 3}, "text again")
    carried, other = _lines(told.err)
    assert (carried["message"], carried["process"]) == ("Traceback (most recent call last):", "PartitionActor pid=7")
    assert (other["message"], other["logger"]) == ("a node has died", "ray")


def test_a_start_that_fails_is_a_json_object_too(tmp_path):
    tidefast = str(Path(sys.executable).with_name("tidefast"))
    done = subprocess.run(
        [tidefast, "serve", "--log", "json", "--state", str(tmp_path), "--max-batch", "0", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    (line,) = _lines(done.stdout + done.stderr)
    assert (line["level"], "max_batch must be" in line["message"]) == ("critical", True)
