"""OpenTelemetry spans of requests, sent to a collector by a thread of their own; needs the extra `tracing`.

OpenTelemetry's own environment variables configure all of it: where the collector is, how much is sampled, how spans
are batched. A collector that is down or slow costs requests nothing: spans wait in a bounded queue, then are dropped.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from kfp_mindspore.errors import MissingExtraError, UserError

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

Value = str | int | float | bool

_ROUTES = {"v1": "/v1/models/{model_name}:predict"}
_V2_ROUTE = "/v2/models/{model_name}/infer"
_GRPC_METHOD = "inference.GRPCInferenceService/ModelInfer"
_GRPC_CODES = {
    200: "OK",
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
# What the semantic conventions call a server's error; the rest is the client's.
_GRPC_ERRORS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
_PREFIX = "mindsporeserver."


class Tracer:
    """Starts spans; made by `build_tracer`.

    Args:
        provider: What samples, batches and sends.
        propagator: What reads the caller's trace from headers.
    """

    def __init__(self, provider: TracerProvider, propagator: TextMapPropagator) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context

        self._provider = provider
        self._propagator = propagator
        self._fields = propagator.fields
        self._tracer = provider.get_tracer("mindsporeserver", _find_version())
        self._kind = trace.SpanKind.SERVER
        # Not what the event loop's context holds: another request's span is no parent.
        self._root = Context()

    def start(self, name: str, headers: Mapping[str, str]) -> Span:
        """Start the span of a request, within its caller's trace when the headers name one.

        Args:
            name: `infer ` and a name of the model repository, never text of a client: back ends keep a list of names.
            headers: The request's headers or metadata, names in lower case.
        """
        context = self._root
        if any(field in headers for field in self._fields):
            context = self._propagator.extract(headers, context)
        return Span(self._tracer, self._tracer.start_span(name, context, self._kind))

    def close(self, seconds: float = 3.0) -> None:
        """Send the spans that wait and end the sending; what a collector does not take in time is lost.

        Args:
            seconds: How long to wait at most.
        """
        # The SDK's own waits for a collector that is down as long as its retries last.
        thread = threading.Thread(target=self._provider.shutdown, name="mindsporeserver-tracing", daemon=True)
        thread.start()
        thread.join(seconds)


class Span:
    """A request's span; made by `Tracer.start`."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def trace_id(self) -> str:
        """The trace's id as 32 hexadecimal digits, for the log; nothing when the span is not sampled."""
        return f"{self._span.get_span_context().trace_id:032x}" if self._span.is_recording() else ""

    def finish(self, status: int, *, queued_at: int = 0, **attributes: Value) -> None:
        """End the span.

        Args:
            status: The HTTP status; for gRPC the one that means the same.
            queued_at: time.time_ns() when the request was queued; with it, and queue_seconds and compute_seconds, the
                span gets the children `queue` and `compute`.
            **attributes: `protocol` (v1, v2, v2-binary or grpc) chooses the semantic conventions, of HTTP or RPC;
                `grpc_status`, such as RESOURCE_EXHAUSTED, is said instead of what `status` maps to. The others become
                attributes called mindsporeserver.<name>: model, rows, queue_seconds, compute_seconds, request_id.
        """
        span = self._span
        if not span.is_recording():
            return
        grpc_status = str(attributes.pop("grpc_status", ""))
        protocol = str(attributes.get("protocol", ""))
        if protocol == "grpc":
            failed = self._describe_rpc(grpc_status or _GRPC_CODES.get(status, "INTERNAL"))
        else:
            failed = self._describe_http(status, protocol)
        span.set_attributes({_PREFIX + name: value for name, value in attributes.items()})
        if failed:
            self._mark_failed(failed)
        if queued_at:
            self._add_children(queued_at, attributes.get("queue_seconds", 0.0), attributes.get("compute_seconds", 0.0))
        span.end()

    def _describe_http(self, status: int, protocol: str) -> str:
        route = _ROUTES.get(protocol, _V2_ROUTE)
        self._span.set_attributes(
            {"http.request.method": "POST", "http.route": route, "http.response.status_code": status}
        )
        return str(status) if status >= 500 else ""

    def _describe_rpc(self, code: str) -> str:
        self._span.set_attributes(
            {"rpc.system.name": "grpc", "rpc.method": _GRPC_METHOD, "rpc.response.status_code": code}
        )
        return code if code in _GRPC_ERRORS else ""

    def _mark_failed(self, kind: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))

    def _add_children(self, queued_at: int, queue_seconds: Value, compute_seconds: Value) -> None:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self._span)
        start = queued_at
        for name, seconds in (("queue", queue_seconds), ("compute", compute_seconds)):
            end = min(start + int(float(seconds) * 1e9), time.time_ns())
            if end > start:
                self._tracer.start_span(name, context, start_time=start).end(end)
            start = end


def build_tracer(service_name: str) -> Tracer:
    """Make the tracer of this process.

    The environment configures it: OTEL_EXPORTER_OTLP_ENDPOINT (default http://localhost:4318), OTEL_TRACES_SAMPLER,
    OTEL_BSP_…, OTEL_RESOURCE_ATTRIBUTES, OTEL_PROPAGATORS, OTEL_SDK_DISABLED; OTEL_SERVICE_NAME wins over the argument.

    Args:
        service_name: What the spans' resource is called.

    Raises:
        MissingExtraError: The extra `tracing` is not installed.
        UserError: A variable asks for what is not there.
    """
    for module in ("opentelemetry.sdk.trace.export", "opentelemetry.exporter.otlp.proto.http"):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            raise MissingExtraError(module.removesuffix(".trace.export"), "tracing") from None
    for name in ("opentelemetry.trace", "opentelemetry.baggage"):
        # They warn of headers that a client wrote wrongly, as often as the client likes.
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        return Tracer(_make_provider(service_name), _choose_propagator())
    except (ValueError, OSError, RuntimeError) as error:
        # The SDK warns of most of what it does not understand and takes its default; of the rest it names no variable.
        set_here = ", ".join(sorted(name for name in os.environ if name.startswith("OTEL_")))
        raise UserError(f"--tracing: {error}", hint=f"One of these is wrong: {set_here}") from None


def _make_provider(service_name: str) -> TracerProvider:
    from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    attributes = {SERVICE_INSTANCE_ID: str(uuid.uuid4()), SERVICE_VERSION: _find_version()}
    # What the environment says wins, except for the name that OpenTelemetry makes up when it says nothing.
    found = Resource.create()
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: service_name}))
    provider = TracerProvider(resource=Resource(attributes).merge(found), shutdown_on_exit=False)
    exporter = _make_exporter()
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _make_exporter() -> SpanExporter | None:
    kind = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    if kind == "none":
        return None
    if kind not in ("", "otlp"):
        raise UserError(f"OTEL_TRACES_EXPORTER: must be otlp or none, got {kind!r}")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(name, "").strip().lower()
        if protocol not in ("", "http/protobuf"):
            raise UserError(
                f"{name}: must be http/protobuf, got {protocol!r}",
                hint="A collector's HTTP receiver listens on port 4318 by default.",
            )
        if protocol:
            break
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _choose_propagator() -> TextMapPropagator:
    if os.environ.get("OTEL_PROPAGATORS"):
        from opentelemetry.propagate import get_global_textmap

        return get_global_textmap()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # Without baggage, OpenTelemetry's other default: nothing here reads it.
    return TraceContextTextMapPropagator()


def _find_version() -> str:
    try:
        return version("kfp-mindspore")
    except PackageNotFoundError:
        return ""
