"""A small receiver of OpenTelemetry's protocol (OTLP) over HTTP."""

from __future__ import annotations

import gzip
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.http_server import Handler, Server


class Receiver(Server):
    """Keeps what exporters send."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, Any]:
        return read_attributes(self.requests[0].resource_spans[0].resource)


class _Handler(Handler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.read_body()
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        self.server.headers.append(dict(self.headers))
        if self.server.status == 200:
            self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.respond(self.server.status)


def read_attributes(holder: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in holder.attributes}
