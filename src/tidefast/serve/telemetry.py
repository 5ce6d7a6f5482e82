"""Traces and metrics by OpenTelemetry (extra `otel`); where they go, its own variables say: OTEL_EXPORTER_OTLP_..."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as points
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import tidefast
from tidefast.serve.access import App, Receive, Scope, Send
from tidefast.serve.answer import Answer
from tidefast.serve.batching import JointWork, PendingRequest, Work
from tidefast.serve.interface import StreamService
from tidefast.serve.service import Service

_log = logging.getLogger("tidefast.serve")
_SCOPE = InstrumentationScope("tidefast.serve", tidefast.__version__)


def _resource() -> Resource:
    named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create({SERVICE_VERSION: tidefast.__version__, **({} if named else {SERVICE_NAME: "tidefast"})})


def _wanted(signal: str) -> bool:
    """Whether OpenTelemetry's variables leave a signal on; what is sent goes by OTLP."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not off and os.environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() != "none"


def _interval() -> float:
    """Seconds between two times of sending the metrics."""
    given = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or "60000"
    with contextlib.suppress(ValueError):
        if 1.0 <= float(given) < math.inf:
            return float(given) / 1000
    raise ValueError(f"OTEL_METRIC_EXPORT_INTERVAL must be a number of milliseconds, 1 or more, got {given!r}")


class Telemetry:
    """Spans of requests and of the steps that answer them, and the metrics of `/metrics` every now and then."""

    def __init__(self, service: StreamService) -> None:
        self._service, self._every = service, _interval()
        if isinstance(service, Service):  # the steps of a cluster are made elsewhere
            service.around_steps, service.around_joint_steps = self.around_steps, self.around_joint_steps
        self._resource = _resource()
        self._provider = TracerProvider(resource=self._resource)
        if _wanted("TRACES"):
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(_SCOPE.name, _SCOPE.version)
        self._metrics = OTLPMetricExporter() if _wanted("METRICS") else None
        self._since = time.time_ns()

    # -- spans ------------------------------------------------------------------------------------------------

    def around_requests(self, app: App) -> App:
        """The application, with a span for each request; it goes on the trace that the client's headers name."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            verb = scope["method"]
            with self._tracer.start_as_current_span(
                verb, context=propagate.extract(headers), kind=SpanKind.SERVER, attributes={"http.request.method": verb}
            ) as span:

                async def noting(message: Any) -> None:
                    if message["type"] == "http.response.start":
                        _note(span, verb, scope, message["status"])
                    await send(message)

                await app(scope, receive, noting)

        return traced

    def around_steps(self, work: Work[Any, Answer]) -> Work[Any, Answer]:
        """What makes steps, with a span for each: a child of its first request, with links to the others."""

        def traced(name: str, kind: str, requests: Sequence[PendingRequest[Any, Answer]]) -> Sequence[Answer]:
            with self._step(name, kind, requests) as span:
                answers = work(name, kind, requests)
                _note_step(span, answers)
                return answers

        return traced

    def around_joint_steps(self, work: JointWork[Any, Answer]) -> JointWork[Any, Answer]:
        """What makes steps of several streams at once, with a span for each of the streams."""

        def traced(
            kind: str, batches: Mapping[str, Sequence[PendingRequest[Any, Answer]]]
        ) -> Mapping[str, Sequence[Answer] | Exception]:
            with contextlib.ExitStack() as stack:
                spans = {name: stack.enter_context(self._step(name, kind, batches[name])) for name in batches}
                results = work(kind, batches)
                for name, span in spans.items():
                    span.set_attribute("tidefast.together", len(batches))
                    result = results[name]
                    if isinstance(result, Exception):
                        span.record_exception(result)
                        span.set_status(Status(StatusCode.ERROR))
                    else:
                        _note_step(span, result)
                return results

        return traced

    def _step(
        self, name: str, kind: str, requests: Sequence[PendingRequest[Any, Answer]]
    ) -> contextlib.AbstractContextManager[Span]:
        """The span of one stream's step."""
        askers = [request.context.run(trace.get_current_span) for request in requests]
        return self._tracer.start_as_current_span(
            "step",
            context=trace.set_span_in_context(askers[0]),
            links=[Link(asker.get_span_context()) for asker in askers[1:]],
            attributes={
                "tidefast.stream": name,
                "tidefast.call": kind,
                "tidefast.requests": len(requests),
                "tidefast.images": sum(request.size for request in requests),
            },
        )

    # -- metrics ----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def mirrored(self) -> AsyncIterator[None]:
        """Within it what `/metrics` shows is sent every now and then, and at the end once more, with the last spans."""
        metrics = self._metrics
        mirror = None if metrics is None else asyncio.create_task(self._mirror(metrics))
        try:
            yield
        finally:
            if mirror is not None and metrics is not None:
                mirror.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await mirror
                await self._send(metrics)
                await asyncio.to_thread(metrics.shutdown)
            await asyncio.to_thread(self._provider.shutdown)

    async def _mirror(self, exporter: OTLPMetricExporter) -> None:
        while True:
            await asyncio.sleep(self._every)
            await self._send(exporter)

    async def _send(self, exporter: OTLPMetricExporter) -> None:
        """Send the metrics; whatever prevents it is logged and harms nobody."""
        try:
            text = (await self._service.metrics()).decode()
        except Exception:
            _log.exception("the metrics could not be read")
            return
        metrics = list(as_metrics(text, self._since, time.time_ns()))
        scoped = points.ScopeMetrics(_SCOPE, metrics, "")
        data = points.MetricsData([points.ResourceMetrics(self._resource, [scoped], "")])
        await asyncio.to_thread(exporter.export, data)


def _note_step(span: Span, answers: Sequence[Answer]) -> None:
    """What is known of a step once it is done."""
    span.set_attributes({"tidefast.step": answers[0].step, "tidefast.adapted": answers[0].adapted})


def _note(span: Span, verb: str, scope: Scope, status: int) -> None:
    """What is known of a request once it is answered."""
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        span.update_name(f"{verb} {route}")
        span.set_attribute("http.route", route)
    span.set_attribute("url.path", scope["path"])
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))


def as_metrics(text: str, since: int, now: int) -> Iterator[points.Metric]:
    """The metrics in Prometheus' text as OpenTelemetry has them; times in nanoseconds since 1970.

    >>> [metric] = as_metrics("# TYPE x counter\\nx_total{kind=\\"a\\"} 3.0\\n", 0, 1)
    >>> metric.name, metric.data.data_points[0].value, metric.data.data_points[0].attributes
    ('x', 3.0, {'kind': 'a'})
    """
    cumulative = points.AggregationTemporality.CUMULATIVE
    for family in text_string_to_metric_families(text):
        if family.type == "histogram":
            histogram = points.Histogram(_histogram_points(family, since, now), cumulative)
            yield points.Metric(family.name, family.documentation, "", histogram)
            continue
        names = dict.fromkeys(sample.name for sample in family.samples)
        for name in names:
            numbers = [
                points.NumberDataPoint(sample.labels, since, now, sample.value)
                for sample in family.samples
                if sample.name == name
            ]
            counts = family.type in ("counter", "summary")
            data = points.Sum(numbers, cumulative, is_monotonic=True) if counts else points.Gauge(numbers)
            yield points.Metric(name.removesuffix("_total"), family.documentation, "", data)


def _histogram_points(family: Metric, since: int, now: int) -> list[points.HistogramDataPoint]:
    """Prometheus counts all up to an edge, OpenTelemetry those between two."""
    found: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        entry = found.setdefault(tuple(labels.items()), {"labels": labels, "edges": [], "counts": [], "sum": 0.0})
        if sample.name.endswith("_bucket"):
            entry["edges"].append(float(sample.labels["le"]))
            entry["counts"].append(int(sample.value))
        elif sample.name.endswith("_sum"):
            entry["sum"] = sample.value
    return [
        points.HistogramDataPoint(
            entry["labels"],
            since,
            now,
            count=entry["counts"][-1],
            sum=entry["sum"],
            bucket_counts=[upper - lower for lower, upper in zip([0, *entry["counts"]], entry["counts"], strict=False)],
            explicit_bounds=entry["edges"][:-1],
            min=None,  # type: ignore[arg-type]  # not known; the protocol has it optional
            max=None,  # type: ignore[arg-type]  # likewise
        )
        for entry in found.values()
    ]
