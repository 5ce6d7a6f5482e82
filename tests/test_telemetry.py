"""Traces and metrics by OpenTelemetry, from a real process to a receiver that speaks OTLP."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("opentelemetry.sdk", reason="left out: the extra `otel` is not installed")

import serving
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from tidefast import serve
from tidefast.serve.telemetry import Telemetry

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Receiver(http.server.ThreadingHTTPServer):
    """Takes what exporters send."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list = []
        self.metrics: dict = {}
        self.resources: set[str] = set()
        self.exports = 0


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        import gzip

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            for of in ExportTraceServiceRequest.FromString(body).resource_spans:
                self._note(of.resource)
                self.server.spans += [span for scope in of.scope_spans for span in scope.spans]
        else:
            assert self.path == "/v1/metrics"
            for of in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self._note(of.resource)
                self.server.metrics = {metric.name: metric for scope in of.scope_metrics for metric in scope.metrics}
            self.server.exports += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _note(self, resource) -> None:
        self.server.resources |= {each.value.string_value for each in resource.attributes if each.key == "service.name"}

    def log_message(self, *_: object) -> None:
        pass


def attributes(span) -> dict:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver to which services that begin meanwhile send."""
    receiver = Receiver()
    thread = threading.Thread(target=receiver.serve_forever)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.server_address[1]}")
        patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
        patch.setenv("TIDEFAST_SERVE_OTEL", "true")
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()
            receiver.server_close()


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What a service told a receiver in its life, and its own metrics at the end of it."""
    with (
        receiving() as receiver,
        serving.serving(tmp_path_factory.mktemp("otel") / "state", "--max-wait", "0") as running,
    ):
        with running.client() as client:
            headers = {"Content-Type": serving.NPY, "traceparent": f"00-{TRACE}-{PARENT}-01"}
            body = serving.npy(serving.pictures(20))
            client.post("/v1/streams/a/adapt", content=body, headers=headers).raise_for_status()
            assert client.get("/v1/streams/none").status_code == 404
            shown = client.get("/metrics").text
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
        log = running.log.read_text()
    return receiver, shown, log


def test_a_request_is_a_span_and_its_step_a_child_on_the_clients_trace(told):
    receiver, _, log = told
    assert "Traceback" not in log
    assert receiver.resources == {"tidefast"}
    spans = {span.name: span for span in receiver.spans}
    asked, step = spans["POST /v1/streams/{name}/adapt"], spans["step"]
    assert (asked.trace_id.hex(), asked.parent_span_id.hex()) == (TRACE, PARENT)
    assert (step.trace_id.hex(), step.parent_span_id) == (TRACE, asked.span_id)
    assert asked.start_time_unix_nano <= step.start_time_unix_nano <= step.end_time_unix_nano
    assert step.end_time_unix_nano <= asked.end_time_unix_nano
    known = attributes(step)
    assert (known["tidefast.stream"], known["tidefast.call"], known["tidefast.step"]) == ("a", "adapt", 1)
    assert (known["tidefast.images"], known["tidefast.requests"], known["tidefast.adapted"]) == (20, 1, True)
    assert attributes(asked)["http.response.status_code"] == 200
    assert attributes(spans["GET /v1/streams/{name}"])["http.response.status_code"] == 404


def test_the_metrics_are_those_that_prometheus_reads(told):
    receiver, shown, _ = told
    assert receiver.exports >= 1
    families = {family.name: family for family in text_string_to_metric_families(shown) if family.samples}
    for name, family in families.items():
        if family.type == "summary":
            assert {f"{name}_count", f"{name}_sum"} <= receiver.metrics.keys()
            continue
        metric = receiver.metrics[name]
        assert metric.WhichOneof("data") == {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}[family.type]
        assert metric.description == family.documentation
    (steps,) = receiver.metrics["tidefast_steps"].sum.data_points
    assert steps.as_double == 1
    assert receiver.metrics["tidefast_steps"].sum.is_monotonic
    latency = {
        point.attributes[0].value.string_value: point
        for point in receiver.metrics["tidefast_latency_seconds"].histogram.data_points
    }
    assert latency["adapt"].count == sum(latency["adapt"].bucket_counts) == 1
    assert len(latency["adapt"].bucket_counts) == len(latency["adapt"].explicit_bounds) + 1
    assert not latency["adapt"].HasField("max")  # it is not known


def test_streams_that_share_a_step_have_a_span_each_below_their_requests(tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    body = serving.npy(serving.pictures(16))

    def adapt(name: str) -> None:
        with running.client() as client:
            for _ in range(4):
                answer = client.post(f"/v1/streams/{name}/adapt", content=body, headers={"Content-Type": serving.NPY})
                answer.raise_for_status()

    with receiving() as receiver, serving.serving(tmp_path / "state", "--together", "4") as running:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(adapt, "abcd"))
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
    requests = {span.span_id for span in receiver.spans if span.name == "POST /v1/streams/{name}/adapt"}
    steps = [(span, attributes(span)) for span in receiver.spans if span.name == "step"]
    assert {span.parent_span_id for span, _ in steps} == requests
    assert sorted((known["tidefast.stream"], known["tidefast.step"]) for _, known in steps) == [
        (name, step) for name in "abcd" for step in range(1, 5)
    ]
    assert max(known.get("tidefast.together", 1) for _, known in steps) > 1
    assert receiver.exports == 0


def test_a_receiver_that_is_away_harms_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    with serving.serving(tmp_path / "state", "--max-wait", "0", "--otel") as running:
        with running.client() as client:
            body = serving.npy(serving.pictures(20))
            for step in (1, 2):
                said = client.post("/v1/streams/a/adapt", content=body, headers={"Content-Type": serving.NPY}).json()
                assert said["step"] == step
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0


def test_an_interval_that_is_none_is_named_with_its_variable(tmp_path, monkeypatch):
    service = serve.open_service(serve.Settings(state=tmp_path / "state"))
    for given in ("soon", "0", "-5", "nan", "inf"):
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", given)
        with pytest.raises(ValueError, match=rf"OTEL_METRIC_EXPORT_INTERVAL must be .+, got '{given}'"):
            Telemetry(service)


WITHOUT = """
import sys
sys.modules["opentelemetry.sdk"] = None
from tidefast import cli
sys.exit(cli.main(["serve", "--otel", "--state", sys.argv[1], "--port", "0"]))
"""


def test_without_the_extra_one_line_says_how_to_get_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "tidefast serve --otel needs packages that are not installed" in done.stderr
    assert "pip install '.[otel]'" in done.stderr


def test_nothing_of_it_is_imported_unless_it_is_asked_for(tmp_path):
    code = (  # FastAPI takes a look at OpenTelemetry's interface by itself, where it is there
        "import sys; from tidefast import serve; "
        f"s = serve.open_service(serve.Settings(state={str(tmp_path)!r}, threads=1)); serve.make_app(s); "
        "s.snapshots.close(); assert 'opentelemetry.sdk' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
