"""Metrics, log line and span for an inference request, the same for HTTP and gRPC."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mindsporeserver.errors import RequestError

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from mindsporeserver.models.batcher import Ticket
    from mindsporeserver.models.served_model import ServedModel
    from mindsporeserver.observability.logs import RequestLog
    from mindsporeserver.observability.metrics import ServerMetrics
    from mindsporeserver.observability.tracing import Tracing


class Telemetry:
    """Records requests.

    Args:
        log: Writes a line per request.
        metrics: Count requests for models that are not served.
        tracing: Adds spans, or None.
    """

    def __init__(self, log: RequestLog, metrics: ServerMetrics, tracing: Tracing | None = None) -> None:
        self.log = log
        self.metrics = metrics
        self.tracing = tracing

    def start(self, protocol: str, model: ServedModel | str) -> RequestRecord:
        """Return a new request's record.

        Args:
            protocol: v1, v2, v2-binary, grpc or openai.
            model: The model, or an unserved model's name.
        """
        if not isinstance(model, str):
            model.metrics.count_request(protocol)
        return RequestRecord(self, protocol, model, self.tracing.get_span() if self.tracing is not None else None)

    def close(self) -> None:
        """Send the last spans."""
        if self.tracing is not None:
            self.tracing.close()


class RequestRecord:
    """One request; `finish` or `fail` is called once, with the outcome."""

    __slots__ = ("_model", "_protocol", "_span", "_telemetry", "request_id", "started", "ticket")

    def __init__(self, telemetry: Telemetry, protocol: str, model: ServedModel | str, span: Span | None) -> None:
        self._telemetry = telemetry
        self._protocol = protocol
        self._model = model
        self._span = span
        self.started = time.monotonic()
        self.request_id = ""
        self.ticket: Ticket | None = None

    @property
    def unknown(self) -> Mapping[str, int]:
        """Unknown categories in the request by input."""
        return self.ticket.unknown if self.ticket is not None else {}

    def finish(self) -> None:
        """Record a request that was answered with outputs."""
        if not isinstance(self._model, str):
            self._model.metrics.observe_latency(time.monotonic() - self.started)
        self._record(200)

    def fail(self, error: RequestError) -> None:
        """Record a request that was refused or failed."""
        if isinstance(self._model, str):
            self._telemetry.metrics.count_unknown(self._protocol, error.reason)
        else:
            self._model.metrics.count_failure(error.reason)
        self._record(error.status, error.message)

    def _record(self, status: int, reason: str = "") -> None:
        span, log, ticket = self._span, self._telemetry.log, self.ticket
        is_logged = log.is_enabled(status)
        if span is None and not is_logged:
            return
        fields: dict[str, str | float] = {
            "request_id": self.request_id[:128],
            "protocol": self._protocol,
            "model": self._model[:128] if isinstance(self._model, str) else self._model.name,
            "status": status,
            "seconds": round(time.monotonic() - self.started, 6),
            "queue_seconds": round(ticket.queued_seconds, 6) if ticket is not None else 0,
            "compute_seconds": round(ticket.computed_seconds, 6) if ticket is not None else 0,
            "rows": ticket.rows if ticket is not None else 0,
        }
        if span is not None and self._telemetry.tracing is not None:
            span.set_attributes({f"mindsporeserver.{name}": value for name, value in fields.items()})
            if ticket is not None:
                stages = {"queue": ticket.queued_seconds, "compute": ticket.computed_seconds}
                self._telemetry.tracing.add_stages(span, ticket.arrived, **stages)
        if is_logged:
            trace_id = {} if span is None else {"trace_id": f"{span.get_span_context().trace_id:032x}"}
            log.write(status, {**fields, "reason": reason, **trace_id})
