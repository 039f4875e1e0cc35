"""OpenTelemetry spans for inference requests, by OpenTelemetry's ASGI and gRPC instrumentation; the extra `tracing`.

OpenTelemetry's environment variables configure the exporter, the sampling and span batches. A collector that is down or
slow delays no request: spans are queued, and dropped when the queue is full.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import uuid
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import MissingExtraError, UserError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

_ROUTES = (
    (re.compile(r"/v1/models/[^/]+:predict"), "/v1/models/{model_name}:predict"),
    (re.compile(r"/v2/models/[^/]+(/versions/[^/]+)?/infer"), "/v2/models/{model_name}/infer"),
)
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Tracing:
    """This process's spans.

    Args:
        service_name: the resource's `service.name`, unless the environment names another.

    Raises:
        MissingExtraError: The extra `tracing` is not installed.
        UserError: An environment variable is invalid.
    """

    def __init__(self, service_name: str) -> None:
        # The stable HTTP attribute names; the instrumentation's default names predate 1.23.
        os.environ.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "http")
        if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
            os.environ.setdefault("OTEL_SERVICE_NAME", service_name)
        try:
            from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_VERSION, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            resource = Resource.create({SERVICE_INSTANCE_ID: str(uuid.uuid4()), SERVICE_VERSION: _get_version()})
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            if (exporter := _build_exporter()) is not None:
                self._provider.add_span_processor(BatchSpanProcessor(exporter))
        except ModuleNotFoundError as error:
            raise MissingExtraError(str(error.name), "tracing") from None
        except (ValueError, OSError, RuntimeError) as error:
            # The SDK names no variable in most errors.
            names = ", ".join(sorted(name for name in os.environ if name.startswith("OTEL_")))
            raise UserError(f"--tracing: {error}", hint=f"One of these is invalid: {names}") from None
        self._tracer = self._provider.get_tracer("mindsporeserver", _get_version())
        for name in ("opentelemetry.trace", "opentelemetry.baggage"):
            # They log a warning for each invalid client header.
            logging.getLogger(name).setLevel(logging.ERROR)

    def wrap(self, application: Any) -> Any:
        """Return an ASGI application that records a span for each inference request."""
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

        def describe(scope: dict[str, Any]) -> tuple[str, dict[str, Any]]:
            route = _get_route(scope)
            return f"{scope['method']} {route}", {"http.route": route}

        traced = OpenTelemetryMiddleware(
            application,
            default_span_details=describe,
            tracer_provider=self._provider,
            exclude_spans=["receive", "send"],
        )

        async def choose(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await (traced if _get_route(scope) else application)(scope, receive, send)

        return choose

    def build_interceptor(self) -> Any:
        """Return a gRPC interceptor that records a span for each ModelInfer call."""
        from opentelemetry.instrumentation.grpc import aio_server_interceptor, filters

        return aio_server_interceptor(self._provider, filters.method_name("ModelInfer"))  # type: ignore[no-untyped-call]

    def get_span(self) -> Span | None:
        """Return the current request's span; None when it is not sampled."""
        from opentelemetry.trace import get_current_span

        span = get_current_span()
        return span if span.is_recording() else None

    def add_stages(self, span: Span, arrived: float, **seconds: float) -> None:
        """Add consecutive children to a span.

        Args:
            span: A request's span.
            arrived: `time.monotonic()` when the first stage started.
            **seconds: Each stage's duration by name.
        """
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(span)
        start = time.time_ns() - int((time.monotonic() - arrived) * 1e9)
        for name, duration in seconds.items():
            end = start + int(duration * 1e9)
            self._tracer.start_span(name, context, start_time=start).end(end)
            start = end

    def close(self, seconds: float = 3.0) -> None:
        """Send the queued spans; those that the collector does not accept in time are dropped.

        Args:
            seconds: Longest wait. The SDK's own shutdown waits for the retries to a collector that is down.
        """
        thread = threading.Thread(target=self._provider.shutdown, name="mindsporeserver-tracing", daemon=True)
        thread.start()
        thread.join(seconds)


def _build_exporter() -> SpanExporter | None:
    kind = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    if kind == "none":
        return None
    if kind != "otlp":
        raise UserError(f"OTEL_TRACES_EXPORTER: must be otlp or none, got {kind!r}")
    name = next((name for name in _PROTOCOL_VARIABLES if os.environ.get(name, "").strip()), "")
    if name and (protocol := os.environ[name].strip().lower()) != "http/protobuf":
        raise UserError(
            f"{name}: must be http/protobuf, got {protocol!r}",
            hint="A collector's HTTP receiver listens on port 4318 by default.",
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _get_route(scope: dict[str, Any]) -> str:
    path = scope["path"] if scope["type"] == "http" and scope["method"] == "POST" else ""
    return next((route for pattern, route in _ROUTES if pattern.fullmatch(path)), "")


def _get_version() -> str:
    return version("kfp-mindspore")
